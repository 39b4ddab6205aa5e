"""Exchange of arrays between ranks: one protocol, several backends."""
