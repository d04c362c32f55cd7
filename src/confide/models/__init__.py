"""Models and tokenizers: from a folder or a hub, as they are trained."""
