"""Images and labels: MNIST, CIFAR-10, the digits of scikit-learn, noise."""

import gzip
import sys

import numpy as np


def load(data, data_dir=None):
    """Returns images in [0, 1] and labels, for training and for the test.

    MNIST and the digits are rows of pixels. CIFAR-10 has images.
    """
    if data == "digits":
        return load_digits()
    train, test = load_tfds(data, data_dir)
    if data == "mnist":
        train, test = ((_as_rows(x), y) for x, y in (train, test))
    return train, test


def load_tfds(data, data_dir=None):
    """Loads both splits with tensorflow-datasets, or ends the program."""
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
            f"{data} could not be loaded ({reason}): pip install "
            "tensorflow-cpu tensorflow-datasets importlib_resources, give the "
            "folder with --data-dir, or use --data digits where the program "
            "has it."
        )
    return [
        (split["image"].astype("float32") / 255, split["label"].astype("int32"))
        for split in splits
    ]


def load_idx(path):
    """Returns the images of a gzipped file in MNIST's format, in [0, 1]."""
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


def random_images(number, shape):
    """Returns random pixels and labels of ten classes, for measuring time."""
    generator = np.random.default_rng(0)
    x = generator.random((number, *shape), dtype="float32")
    return x, generator.integers(10, size=number)


def _as_rows(images):
    return images.reshape(len(images), -1)
