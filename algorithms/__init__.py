"""Algorithms: one per file, found by name (`ppo` is `ppo.py`)."""
