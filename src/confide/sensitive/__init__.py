"""Find the sensitive characters of a text, and redact them."""
