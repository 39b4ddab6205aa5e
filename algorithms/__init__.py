"""What is learnt: one file an algorithm."""
