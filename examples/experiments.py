"""What the experiments share: data, networks by method, training, results."""

import csv
import gzip
import os
import sys
import time

import keras
import numpy as np

import keras_vdrop

# Names of the methods compared, as in Figure 1 of the paper.
METHODS = (
    "none",
    "binary",
    "gaussian_a",
    "variational_a",
    "variational_a2",
    "gaussian_b",
    "variational_b",
)
# Dropout rates before the first layer and before the others.
RATES = (0.2, 0.5)


def add_data_arguments(parser):
    parser.add_argument(
        "--data",
        choices=("mnist", "digits"),
        default="mnist",
        help="MNIST, or scikit-learn's 8x8 digits, which need no download",
    )
    parser.add_argument(
        "--data-dir",
        default=os.environ.get("TFDS_DATA_DIR"),
        help="folder of tensorflow-datasets (default: TFDS_DATA_DIR)",
    )


def load(data, data_dir=None):
    """Images in [0, 1] and labels: of training, and of the test.

    MNIST and the digits are rows of pixels, CIFAR-10 are images.
    """
    if data == "digits":
        return load_digits()
    train, test = load_tfds(data, data_dir)
    if data == "mnist":
        train, test = ((_as_rows(x), y) for x, y in (train, test))
    return train, test


def load_tfds(data, data_dir=None):
    try:
        import tensorflow_datasets as tfds

        splits = tfds.as_numpy(
            tfds.load(
                data,
                split=["train", "test"],
                batch_size=-1,
                data_dir=data_dir,
            )
        )
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        sys.exit(
            f"{data} cannot be had ({reason}): pip install tensorflow-cpu "
            "tensorflow-datasets importlib_resources, give the folder with "
            "--data-dir, or use --data digits where the program has it."
        )
    return [
        (split["image"].astype("float32") / 255, split["label"].astype("int32"))
        for split in splits
    ]


def load_idx(path):
    """Images in [0, 1] of a file in the format of MNIST, gzipped."""
    with gzip.open(path) as file:
        kind, *shape = np.frombuffer(file.read(16), ">i4")
        if kind != 0x803:
            sys.exit(f"{path} has no images in the format of MNIST.")
        pixels = np.frombuffer(file.read(), "uint8")
    return pixels.reshape(shape).astype("float32") / 255


def load_digits(train_size=1297):
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order].astype("float32") / 16, y[order].astype("int32")
    return (x[:train_size], y[:train_size]), (x[train_size:], y[train_size:])


def _as_rows(images):
    return images.reshape(len(images), -1)


def block(method, layer, rate, noise=None, **arguments):
    """A Keras layer, "Dense" or "Conv2D", with a method's noise before it.

    `noise` are more arguments for the variational layer, if it is one.
    """
    plain = getattr(keras.layers, layer)
    variational = getattr(keras_vdrop, f"Variational{layer}")
    if method == "none":
        return [plain(**arguments)]
    if method == "binary":
        return [keras.layers.Dropout(rate), plain(**arguments)]
    if method == "gaussian_a":
        return [keras.layers.GaussianDropout(rate), plain(**arguments)]
    kind, variant = method.split("_")
    return [
        variational(
            rate=rate,
            noise={"a": "correlated", "b": "independent"}[variant[0]],
            adaptive=kind == "variational",
            kl_downscale=3.0 if variant == "a2" else 1.0,
            **(noise or {}),
            **arguments,
        )
    ]


def dense_network(method, shape, widths, noise=None, rates=RATES):
    """ReLU layers of these widths, and ten logits."""
    layers = []
    for width in widths:
        rate = rates[1] if layers else rates[0]
        layers += block(
            method, "Dense", rate, noise, units=width, activation="relu"
        )
    layers += block(method, "Dense", rates[1], noise, units=10)
    return keras.Sequential([keras.Input(shape), *layers])


def convolutional_network(method, shape, size, noise=None, rates=RATES):
    """The paper's network for CIFAR-10: `size` is its k."""
    input_rate, rate = rates
    convolution = {
        "kernel_size": 3,
        "strides": 2,
        "padding": "same",
        "activation": "softplus",
    }
    hidden = {"units": 128 * size, "activation": "softplus"}
    layers = [
        *block(
            method,
            "Conv2D",
            input_rate,
            noise,
            filters=32 * size,
            **convolution,
        ),
        *block(
            method,
            "Conv2D",
            rate,
            noise,
            filters=64 * size,
            **convolution,
        ),
        keras.layers.Flatten(),
        *block(method, "Dense", rate, noise, **hidden),
        *block(method, "Dense", rate, noise, **hidden),
        *block(method, "Dense", rate, noise, units=10),
    ]
    return keras.Sequential([keras.Input(shape), *layers])


def adaptive_layers(model):
    return [
        layer
        for layer in model.layers
        if getattr(layer, "adaptive", False) is True
    ]


def compile_classifier(model, num_examples, optimizer, kl_downscale=1.0):
    """Cross-entropy, and the KL of layers that learn their rates."""
    for layer in adaptive_layers(model):
        layer.set_num_examples(num_examples, layer.kl_downscale * kl_downscale)
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def error_percent(model, data):
    """Of the model without noise."""
    logits = model.predict(data[0], batch_size=1000, verbose=0)
    return 100 * float(np.mean(np.argmax(logits, axis=-1) != data[1]))


def mean_rates(model):
    return [float(x.dropout_rates().mean()) for x in adaptive_layers(model)]


class EpochLine(keras.callbacks.Callback):
    """One line that is overwritten: the run, its epoch and its loss."""

    def __init__(self, label):
        super().__init__()
        self.label = label

    def on_train_begin(self, logs=None):
        self.start, self.done = time.time(), 0

    def on_epoch_end(self, epoch, logs):
        epochs = self.params["epochs"]
        self.done += 1  # A training that goes on does not begin at 0.
        each = (time.time() - self.start) / self.done
        shown = f"loss {logs['loss']:.4f}"
        if "val_accuracy" in logs:
            shown += f", validation {100 * (1 - logs['val_accuracy']):.2f}%"
        print(
            f"\r{self.label}: epoch {epoch + 1}/{epochs}, {shown}, "
            f"{duration((epochs - epoch - 1) * each)} left" + 8 * " ",
            end="" if epoch + 1 < epochs else "\n",
            flush=True,
        )


def duration(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


def versions():
    backend = keras.backend.backend()
    return {
        "backend": f"{backend} {__import__(backend).__version__}",
        "keras": keras.__version__,
        "keras_vdrop": keras_vdrop.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
    }


class Results:
    """Rows of a CSV file: each is written at once, and found again."""

    def __init__(self, path):
        self.path = path

    def rows(self):
        if not os.path.exists(self.path):
            return []
        with open(self.path, newline="") as file:
            return list(csv.DictReader(file))

    def append(self, row):
        rows = self.rows()
        if rows and list(rows[0]) != list(row):
            sys.exit(
                f"{self.path} has other columns. Give another file with --out."
            )
        os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
        with open(self.path, "a", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if not rows:
                writer.writeheader()
            writer.writerow(row)

    def select(self, **wanted):
        wanted = {name: str(value) for name, value in wanted.items()}
        return [row for row in self.rows() if wanted.items() <= row.items()]


def deviation(values):
    """Standard deviation of what they are a sample of; of one, 0."""
    return np.std(values, ddof=1) if len(values) > 1 else 0.0


def spread(values, digits=2):
    """Mean ± standard deviation, as text."""
    text = f"{np.mean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {deviation(values):.{digits}f}"
    return text
