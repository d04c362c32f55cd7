"""The door for programs: what the verbs of the command line do, as functions that return values."""
