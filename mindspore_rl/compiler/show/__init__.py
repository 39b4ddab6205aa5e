"""Pictures and text of a program."""
