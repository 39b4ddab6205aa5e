"""From fragments to what runs: compiled cells, native operators and plain Python."""
