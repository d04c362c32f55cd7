"""What single studies try or compute: strategies, optimisers, a model of made-up users."""
