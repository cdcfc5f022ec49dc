"""Data of the examples: MNIST by tensorflow-datasets, or embedded digits."""

import os
import sys

import numpy as np


def add_arguments(parser):
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
    """Images in [0, 1] as rows, and labels: of training, and of the test."""
    return load_digits() if data == "digits" else load_mnist(data_dir)


def load_mnist(data_dir=None):
    try:
        import tensorflow_datasets as tfds

        train, test = tfds.as_numpy(
            tfds.load(
                "mnist",
                split=["train", "test"],
                batch_size=-1,
                data_dir=data_dir,
            )
        )
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        sys.exit(
            f"MNIST cannot be had ({reason}): pip install tensorflow-cpu "
            "tensorflow-datasets importlib_resources, give the folder with "
            "--data-dir, or use --data digits."
        )
    return (_as_rows(train["image"], 255), train["label"].astype("int32")), (
        _as_rows(test["image"], 255),
        test["label"].astype("int32"),
    )


def load_digits(train_size=1297):
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = _as_rows(x[order], 16), y[order].astype("int32")
    return (x[:train_size], y[:train_size]), (x[train_size:], y[train_size:])


def _as_rows(images, brightest):
    return images.reshape(len(images), -1).astype("float32") / brightest
