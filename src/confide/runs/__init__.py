"""The run folder: prepare, train, resume, release, verify."""
