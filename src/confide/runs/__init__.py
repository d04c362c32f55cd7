"""Keep a run folder: prepare, train, resume, release, verify."""
