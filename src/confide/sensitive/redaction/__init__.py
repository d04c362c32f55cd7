"""Redact text: find its sensitive characters by a policy, and make training rows without them."""
