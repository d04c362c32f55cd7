"""Processes that train together, and a model split over them."""
