"""Sweep over hyperparameters, and define what may be tried."""
