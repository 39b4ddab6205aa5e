"""Offline data sets: files of trajectories, how they are made, and batches of them."""
