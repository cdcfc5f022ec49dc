"""The methods that `uncertainty.py` compares, and what is tried for each."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Method:
    """How predictions are made.

    Args:
        network: Key of `CANDIDATES`.
        members: How many networks are trained, for an ensemble.
        samples: Samples of each network; `None` for the number asked for.
        dropout: Whether its dropout is on in predictions.
    """

    network: str
    members: int = 1
    samples: int | None = None
    dropout: bool = False


METHODS = {
    "plain": Method("plain", samples=1),
    "MC dropout": Method("dropout", dropout=True),
    "ensemble of 5": Method("plain", members=5, samples=1),
    "correlated": Method("correlated"),
    # Nothing is chosen. It is correlated but for convolutions.
    "default": Method("default"),
    "independent per weight": Method("independent"),
    "normal prior": Method("normal"),
    "dropout + normal prior": Method("both"),
    "5 x correlated": Method("correlated", members=5, samples=8),
    "plain, then 2 epochs": Method("converted"),
    "plain, then its last layer": Method("converted_last"),
}
# What is tried on validation data for each network. The first is the default.
_SCALES = [
    {"scale": scale, "kl_downscale": downscale}
    for scale in (0.1, 0.3)
    for downscale in (30.0, 10.0)
]
_RATES = [
    {"rate": 0.05, "kl_downscale": 1.0},
    {"rate": 0.05, "kl_downscale": 3.0},
    {"rate": 0.2, "kl_downscale": 1.0},
]
CANDIDATES = {
    "plain": [{}],
    "dropout": [
        {"rates": (0.2, 0.5)},
        {"rates": (0.1, 0.3)},
        {"rates": (0.2, 0.2)},
    ],
    "correlated": _RATES,
    "default": [{}],
    "independent": _RATES[:2],
    "normal": _SCALES,
    "both": [
        *_SCALES[:2],
        {"scale": 0.1, "kl_downscale": 100.0},
        {"scale": 0.1, "kl_downscale": 300.0},
        {"scale": 0.1, "kl_downscale": 30.0, "rate": 0.2},
        {"scale": 0.3, "kl_downscale": 30.0},
    ],
    # A plain network that was trained, made variational. Two epochs more.
    "converted": [{"rate": 0.2, "epochs": 2}],
    "converted_last": [{"rate": 0.2, "epochs": 2}],
}
