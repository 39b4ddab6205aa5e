"""The program under a policy: replicas, fragments, messages, reductions."""
