"""What in a text is sensitive, in characters."""
