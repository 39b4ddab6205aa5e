"""Compiles an algorithm's source and a distribution policy into a plan."""
