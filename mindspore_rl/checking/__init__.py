"""Compares jobs with the plain loop, value by value, each iteration from equal state."""
