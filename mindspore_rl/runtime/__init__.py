"""Runs a job: coordinator, ranks, checkpoints, metrics, the plain reference."""
