"""Layers exchanged for the same function, computed faster."""
