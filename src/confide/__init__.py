"""confide: fine-tune language models on text told in confidence, and state exactly what that protects."""

__version__ = "0.1.0"
