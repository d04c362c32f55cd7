"""Find named secrets in documents: the places in the text where each of them is mentioned."""
