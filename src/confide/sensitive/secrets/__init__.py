"""Named secrets: where they stand in text, and how often a row that carries some may be drawn."""
