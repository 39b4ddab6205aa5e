"""What is learnt: one algorithm a file, found here by its name (`ppo` is `ppo.py`)."""
