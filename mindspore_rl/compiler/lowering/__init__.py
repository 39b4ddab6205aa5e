"""Lowers fragments to compiled cells, native operators and plain Python."""
