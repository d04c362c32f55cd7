"""One training step, and the model passes around it."""
