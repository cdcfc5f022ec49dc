"""What a model has learned, and how good its probabilities are."""
