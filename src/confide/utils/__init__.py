"""What knows nothing of the rest: errors, files, memory, pictures."""
