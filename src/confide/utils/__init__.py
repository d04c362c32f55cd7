"""Helpers that know nothing of the rest of confide: errors, files, memory, pictures."""
