"""Draws the divergences over log alpha, and how far each is from the exact one.

    python examples/divergences.py --out divergences.png

The left picture is figure 2 of Kingma, Salimans, Welling (2015), -KL over log
alpha, with the approximations that came later; the other two show what it does
not: the errors in value and in slope, which is what training follows. The
prior is improper, so each function of it is known up to a constant: all are
shifted to be 0 at alpha = 1, in the left picture. `ard` is of another prior and
no approximation of the others.
"""

import argparse

import numpy as np
from keras import ops
from matplotlib.figure import Figure
from scipy import special

from keras_vdrop import divergence

COLORS = {
    "exact": "black",
    "polynomial": "tab:blue",
    "lower_bound": "tab:green",
    "sigmoid": "tab:orange",
    "ard": "tab:red",
}


def evaluate(name, log_alpha):
    values = divergence.get(name)(log_alpha.astype("float64"))
    return np.asarray(ops.convert_to_numpy(values), "float64")


def domain(name, log_alpha):
    largest = getattr(divergence.get(name), "max_alpha", np.inf)
    return log_alpha[np.exp(log_alpha) <= largest * (1 + 1e-9)]


def exact_slope(log_alpha):
    u = np.sqrt(np.exp(-log_alpha) / 2)
    return -u * special.dawsn(u)


def slope(name, log_alpha, step=0.01):
    above = evaluate(name, log_alpha + step)
    return (above - evaluate(name, log_alpha - step)) / (2 * step)


def draw(out):
    log_alpha = np.linspace(-8, 6, 561)
    figure = Figure(figsize=(13, 4), layout="constrained")
    values, errors, slopes = figure.subplots(1, 3)
    for name, color in COLORS.items():
        x = domain(name, log_alpha)
        at_one = evaluate(name, np.zeros(1))
        kl = evaluate(name, x)
        style = {"color": color, "label": name}
        values.plot(x, at_one - kl, lw=2.5 if name == "exact" else 1.3, **style)
        if name == "exact":
            continue
        error = kl - evaluate("exact", x)
        # Only the paper's two have a constant to choose.
        if len(x) < len(log_alpha):
            error += evaluate("exact", np.zeros(1)) - at_one
        ratio = slope(name, x) / exact_slope(x)
        errors.plot(x, error, **style)
        slopes.plot(x, 100 * (ratio - 1), **style)
        held = np.exp(x) >= 0.05
        print(
            f"{name:12s} largest error {np.abs(error).max():.4f} nats, "
            f"{np.abs(error[held]).max():.4f} from alpha = 0.05; "
            f"slope off by {100 * np.abs(ratio[held] - 1).max():.1f}% there"
        )
    values.set(title="-KL of one weight, 0 at alpha = 1", ylabel="nats")
    errors.set(title="error of the KL", ylabel="nats", ylim=(-0.25, 0.25))
    slopes.set(title="error of its slope", ylabel="%", ylim=(-60, 60))
    for axes in (values, errors, slopes):
        axes.set_xlabel("log alpha")
        axes.axvline(0, color="gray", lw=0.6, ls=":")
        axes.grid(alpha=0.2)
    errors.axhline(0, color="black", lw=0.8)
    slopes.axhline(0, color="black", lw=0.8)
    values.legend(frameon=False)
    figure.savefig(out, dpi=120)
    print(f"Saved {out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--out", default="divergences.png", help="the picture to write"
    )
    draw(parser.parse_args().out)
