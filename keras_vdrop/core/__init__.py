"""The four ideas: axes, random weights, posteriors and priors, estimators."""
