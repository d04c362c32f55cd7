"""From text to a unit graph on disk."""
