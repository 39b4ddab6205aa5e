"""Where it runs: one file a distribution policy."""
