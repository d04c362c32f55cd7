"""Rules for kinds of layers; each file holds the kinds that compute alike."""
