"""What the values of a program are, found by trying its operations."""
