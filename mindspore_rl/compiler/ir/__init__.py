"""The fragmented dataflow graph: built from a program, checked, partitioned and rewritten."""
