"""Partitions a program under a policy: replicas, fragments, messages, reductions."""
