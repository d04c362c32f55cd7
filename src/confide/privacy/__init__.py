"""Privacy: the unit that is protected, how a step draws, and the guarantee that follows."""
