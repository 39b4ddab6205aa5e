"""Distributed reinforcement learning on MindSpore: write an algorithm, choose where it runs."""

__version__ = "0.1.0"
