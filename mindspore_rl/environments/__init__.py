"""Environments and their vectorised forms."""
