"""Compiler: the algorithm's source and a distribution policy become a plan."""
