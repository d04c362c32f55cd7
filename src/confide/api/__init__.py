"""Offer the verbs of the command line to programs, as functions that return values."""
