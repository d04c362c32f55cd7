"""Text that may be shared: sampled from a released model alone, with a card that says what protects it."""
