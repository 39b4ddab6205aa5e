"""Environments of gymnasium and gym."""
