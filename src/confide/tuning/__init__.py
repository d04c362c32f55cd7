"""A sweep over hyperparameters, and what may be tried in it."""
