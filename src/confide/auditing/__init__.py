"""Attacks on what was claimed: the unit, the adjacency and the release that the run's own records name."""
