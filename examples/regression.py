"""How sure is a regression, where there are data and where there are none?

    python examples/regression.py

This program fits a curve to 40 points in two groups: y = x^3 with noise of
standard deviation 3, the problem of Hernandez-Lobato and Adams (2015) with a
gap in it. It draws the mean prediction with two bands of two standard
deviations: one for the uncertainty of the weights, one for this uncertainty and
the noise of the data together. It reports how many new points are inside the
outer band: where there are data, in the gap, and beyond the data.
"""

import keras
import numpy as np

import keras_vdrop
from shared import plotting
from shared.options import new_parser

NOISE = 3.0
GROUPS = ((-4, -1), (1, 4))
REGIONS = {
    "in the data": GROUPS,
    "in the gap": ((-1, 1),),
    "beyond the data": ((-6, -4), (4, 6)),
}


def curve(x):
    return x**3


def draw_points(groups, number, generator):
    """Returns points and their values, `number` in each group."""
    x = [generator.uniform(low, high, (number, 1)) for low, high in groups]
    x = np.concatenate(x).astype("float32")
    y = curve(x) + NOISE * generator.normal(size=x.shape)
    return x, y.astype("float32")


def negative_log_likelihood(y, mean):
    """Of a normal distribution with the known noise, without its constant.

    The plain mean squared error is the likelihood for a noise of 0.7. With it
    the KL would have too little weight for these data.
    """
    return keras.ops.square(y - mean) / (2 * NOISE**2)


def build(width):
    noise = {"rate": 0.05, "granularity": "weight", "kl": "exact"}
    # Slopes and kinks spread over the range of the inputs.
    wide = keras.initializers.RandomNormal(stddev=1.0)
    dense = keras_vdrop.VariationalDense
    return keras.Sequential(
        [
            keras.Input((1,)),
            keras.layers.Rescaling(1 / 4),
            dense(
                width,
                activation="relu",
                kernel_initializer=wide,
                bias_initializer=wide,
                max_alpha=None,
                **noise,
            ),
            dense(width, activation="relu", max_alpha=None, **noise),
            dense(1, max_alpha=None, **noise),
            keras.layers.Rescaling(30.0),
        ]
    )


def fit(model, x, y, epochs):
    keras_vdrop.set_num_examples(model, len(x))
    rate = keras.optimizers.schedules.CosineDecay(0.01, epochs)
    model.compile(keras.optimizers.Adam(rate), negative_log_likelihood)
    bar = keras.utils.Progbar(epochs, unit_name="epoch")
    shown = max(epochs // 50, 1)

    def show(epoch, logs):
        if (epoch + 1) % shown == 0:
            bar.update(epoch + 1, [("loss", logs["loss"])])

    model.fit(
        x,
        y,
        batch_size=len(x),
        epochs=epochs,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=show)],
        verbose=0,
    )


def predict(model, x, samples):
    """Returns the mean and two deviations: without and with the noise."""
    found = keras_vdrop.predict(
        model, x, samples, batch_size=len(x), seed=0, verbose=0
    )
    return found.mean, found.std, np.sqrt(found.std**2 + NOISE**2)


def show_coverage(model, samples, generator):
    """Prints the share of new points within two deviations, by region."""
    for name, groups in REGIONS.items():
        x, y = draw_points(groups, 1000, generator)
        mean, weights, total = predict(model, x, samples)
        inside = np.mean(np.abs(y - mean) < 2 * total)
        print(
            f"{name:16s} {inside:6.1%} of new points in the band, "
            f"deviation by the weights {weights.mean():.2f}"
        )


def paint(figure, model, x, y, samples):
    grid = np.linspace(-6, 6, 601, dtype="float32")[:, None]
    mean, weights, total = predict(model, grid, samples)
    axes = figure.subplots()
    for deviation, alpha, label in (
        (total, 0.2, "the weights and the noise"),
        (weights, 0.4, "the weights"),
    ):
        axes.fill_between(
            grid[:, 0],
            (mean - 2 * deviation)[:, 0],
            (mean + 2 * deviation)[:, 0],
            color="C0",
            alpha=alpha,
            linewidth=0,
            label=f"2 deviations, by {label}",
        )
    axes.plot(grid, mean, "C0", label="mean")
    axes.plot(grid, curve(grid), "k--", linewidth=1, label="true curve")
    axes.plot(x, y, "k.", label="data")
    axes.set(xlabel="x", ylabel="y", xlim=(-6, 6), ylim=(-220, 220))
    axes.legend(loc="upper left")


def main():
    parser = new_parser(__doc__)
    parser.add_argument("--width", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=3000)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="regression.png")
    options = parser.parse_args()
    keras.utils.set_random_seed(options.seed)
    x, y = draw_points(GROUPS, 20, np.random.default_rng(options.seed))
    model = build(options.width)
    fit(model, x, y, options.epochs)
    generator = np.random.default_rng(options.seed + 1)
    show_coverage(model, options.samples, generator)
    plotting.draw(
        options.out,
        (8, 4.5),
        lambda figure: paint(figure, model, x, y, options.samples),
    )


if __name__ == "__main__":
    main()
