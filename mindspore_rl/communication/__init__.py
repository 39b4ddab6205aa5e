"""How ranks exchange arrays: one protocol, several backends."""
