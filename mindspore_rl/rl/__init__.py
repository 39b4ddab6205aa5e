"""The formulas of reinforcement learning: pure, batched, ignorant of where they run.

Import the modules, not this package: ``random`` needs only NumPy, the others import MindSpore.
"""
