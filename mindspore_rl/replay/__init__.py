"""Replay tables: storing, selecting and collecting records."""
