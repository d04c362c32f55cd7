"""Rules, a file for each few kinds of layers that compute alike."""
