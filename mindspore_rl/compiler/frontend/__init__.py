"""Frontend: Python source of the algorithm's loop to a `Program`."""
