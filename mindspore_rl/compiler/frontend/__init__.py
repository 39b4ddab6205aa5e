"""Source to program: the algorithm's loop as operations."""
