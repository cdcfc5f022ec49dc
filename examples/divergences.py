"""How far is each approximation of the KL from the exact one?

    python examples/divergences.py --out divergences.png

The left panel is Figure 2 of Kingma, Salimans, Welling (2015), -KL over log
alpha, with the approximations that came later. The other two panels show the
error of the value and of the slope, which decides the gradient. The log-uniform
prior is improper, so its KL is known up to a constant: in the left panel all
functions are shifted to be 0 at alpha = 1. `ard` has another prior and does not
approximate the others.
"""

import numpy as np
from keras import ops
from scipy import special

from keras_vdrop import divergence
from shared import plotting
from shared.options import new_parser

COLORS = {
    "exact": "black",
    "polynomial": "tab:blue",
    "lower_bound": "tab:green",
    "sigmoid": "tab:orange",
    "ard": "tab:red",
}
APPROXIMATIONS = [name for name in COLORS if name != "exact"]


def evaluate(name, log_alpha):
    """Returns the KL in nats."""
    values = getattr(divergence, name)(log_alpha.astype("float64"))
    return np.asarray(ops.convert_to_numpy(values), "float64")


def domain(name, log_alpha):
    """Returns the part of the range in which the function holds."""
    largest = getattr(getattr(divergence, name), "max_alpha", np.inf)
    return log_alpha[np.exp(log_alpha) <= largest * (1 + 1e-9)]


def exact_slope(log_alpha):
    """Returns the derivative of the exact KL with respect to log alpha."""
    u = np.sqrt(np.exp(-log_alpha) / 2)
    return -u * special.dawsn(u)


def slope(name, log_alpha, step=0.01):
    above = evaluate(name, log_alpha + step)
    return (above - evaluate(name, log_alpha - step)) / (2 * step)


def error_of(name, log_alpha):
    """Returns the error of the KL, and the relative error of its slope."""
    error = evaluate(name, log_alpha) - evaluate("exact", log_alpha)
    if hasattr(getattr(divergence, name), "max_alpha"):
        # The paper's two functions are 0 at alpha = 1.
        one = np.zeros(1)
        error += evaluate("exact", one) - evaluate(name, one)
    return error, slope(name, log_alpha) / exact_slope(log_alpha) - 1


def show_largest_errors(log_alpha):
    for name in APPROXIMATIONS:
        x = domain(name, log_alpha)
        error, slope_error = map(np.abs, error_of(name, x))
        from_there = np.exp(x) >= 0.05
        print(
            f"{name:12s} largest error {error.max():.4f} nats; from alpha = "
            f"0.05 on {error[from_there].max():.4f} nats, and "
            f"{100 * slope_error[from_there].max():.1f}% of the slope"
        )


def paint(figure, log_alpha):
    values, errors, slopes = figure.subplots(1, 3)
    for name, color in COLORS.items():
        x = domain(name, log_alpha)
        style = {"color": color, "label": name}
        kl = evaluate(name, x) - evaluate(name, np.zeros(1))
        values.plot(x, -kl, lw=2.5 if name == "exact" else 1.3, **style)
        if name in APPROXIMATIONS:
            error, slope_error = error_of(name, x)
            errors.plot(x, error, **style)
            slopes.plot(x, 100 * slope_error, **style)
    values.set(title="-KL of one weight, 0 at alpha = 1", ylabel="nats")
    errors.set(title="error of the KL", ylabel="nats", ylim=(-0.25, 0.25))
    slopes.set(title="error of its slope", ylabel="%", ylim=(-60, 60))
    for axes in (values, errors, slopes):
        axes.set_xlabel("log alpha")
        axes.axvline(0, color="gray", lw=0.6, ls=":")
        axes.grid(alpha=0.2)
    for axes in (errors, slopes):
        axes.axhline(0, color="black", lw=0.8)
    values.legend(frameon=False)


def main():
    parser = new_parser(__doc__)
    parser.add_argument("--out", default="divergences.png", help="picture file")
    options = parser.parse_args()
    log_alpha = np.linspace(-8, 6, 561)
    show_largest_errors(log_alpha)
    plotting.draw(
        options.out, (13, 4), lambda figure: paint(figure, log_alpha), dpi=120
    )


if __name__ == "__main__":
    main()
