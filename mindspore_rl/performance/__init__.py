"""Measures, simulates and reports where the time of a job goes."""
