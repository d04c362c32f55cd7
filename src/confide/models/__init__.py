"""Load models and tokenizers from a folder or a hub, and make them ready to train."""
