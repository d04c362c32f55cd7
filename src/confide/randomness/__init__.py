"""All randomness of a run, and the seals of its files: functions of the run key."""
