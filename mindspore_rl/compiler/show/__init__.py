"""Shows programs as pictures and text."""
