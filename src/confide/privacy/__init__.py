"""What is protected, how a step draws, and what that guarantees."""
