"""The config: its schema, and how a file is read and checked."""
