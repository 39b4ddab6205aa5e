"""The `msrl` command: one file a subcommand."""
