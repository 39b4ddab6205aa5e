"""Infers shapes, axes and row independence of values, by running operations on probe data."""
