"""Predict what a run will cost and guarantee, before a gradient is computed."""
