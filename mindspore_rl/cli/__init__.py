"""The `msrl` command: one file per group of subcommands."""
