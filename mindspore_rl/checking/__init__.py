"""Holds a job to the plain loop: both from equal state, value by value (design, section 5)."""
