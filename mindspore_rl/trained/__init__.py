"""Uses of a finished run: evaluate it, film it, plot it, export it."""
