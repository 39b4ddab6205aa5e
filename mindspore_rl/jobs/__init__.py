"""A job from its options to its run directory: registry, training with restarts, policy choice."""
