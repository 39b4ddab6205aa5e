"""The coordinator: starts the ranks of a job, watches them and reports."""
