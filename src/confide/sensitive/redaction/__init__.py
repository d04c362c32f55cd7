"""Redaction: what in a text is sensitive by a policy, and the rows that stand for it without."""
