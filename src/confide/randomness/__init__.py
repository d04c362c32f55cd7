"""All randomness of a run, and the seals of its files. Both are functions of the run key."""
