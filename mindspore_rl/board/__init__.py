"""The page of `msrl board`, which follows runs as they train."""
