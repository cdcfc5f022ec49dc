"""Command-line options that several programs have."""

import argparse
import os


def new_parser(documentation):
    """Returns a parser that shows defaults.

    Args:
        documentation: The docstring of the program. Its first line describes
            the program in `--help`.
    """
    return argparse.ArgumentParser(
        description=documentation.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )


def add_data(parser, *more):
    """Adds `--data`, with more than these choices, and `--data-dir`."""
    parser.add_argument(
        "--data",
        choices=("mnist", "digits", *more),
        default="mnist",
        help="MNIST, or scikit-learn's 8x8 digits, which need no download",
    )
    add_data_dir(parser)


def add_data_dir(parser):
    parser.add_argument(
        "--data-dir",
        default=os.environ.get("TFDS_DATA_DIR"),
        help="folder of tensorflow-datasets (default: TFDS_DATA_DIR)",
    )


def add_widths(parser, default):
    parser.add_argument(
        "--widths",
        nargs="+",
        type=int,
        default=default,
        metavar="N",
        help="units of each hidden layer",
    )
