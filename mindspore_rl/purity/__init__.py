"""Tells whether code is a function of its arguments alone, and if not, of what else."""
