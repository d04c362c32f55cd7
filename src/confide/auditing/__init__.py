"""Attacks that test a run's claim at the unit, the adjacency and the release that its own records name."""
