"""Intermediate representation: the dataflow graph of a program."""
