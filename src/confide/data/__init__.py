"""Text in, unit graph on disk out."""
