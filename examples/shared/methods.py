"""The methods that the experiments compare."""

# The methods of Figure 1 of the paper, with their names for a reader.
TITLES = {
    "none": "no dropout",
    "binary": "binary dropout",
    "gaussian_a": "Gaussian A",
    "variational_a": "variational A",
    "variational_a2": "variational A2",
    "gaussian_b": "Gaussian B",
    "variational_b": "variational B",
}
METHODS = tuple(TITLES)
# Dropout rates before the first layer and before the others.
RATES = (0.2, 0.5)
