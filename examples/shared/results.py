"""Results in CSV files that an interrupted program finds again."""

import csv
import os
import sys

import numpy as np


class Results:
    """The rows of a CSV file. Each is written as soon as it is known."""

    def __init__(self, path):
        self.path = path

    def rows(self):
        if not os.path.exists(self.path):
            return []
        with open(self.path, newline="") as file:
            return list(csv.DictReader(file))

    def append(self, row):
        rows = self.rows()
        columns = list(rows[0]) if rows else list(row)
        if set(columns) != set(row):
            sys.exit(
                f"{self.path} has other columns. Give another file with --out."
            )
        os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
        with open(self.path, "a", newline="") as file:
            writer = csv.DictWriter(file, columns)
            if not rows:
                writer.writeheader()
            writer.writerow(row)

    def select(self, **wanted):
        """Returns the rows that have these values."""
        wanted = {name: str(value) for name, value in wanted.items()}
        return [row for row in self.rows() if wanted.items() <= row.items()]


def versions():
    """Returns the columns that say which software produced a row."""
    import keras

    import keras_vdrop

    backend = keras.backend.backend()
    return {
        "backend": f"{backend} {__import__(backend).__version__}",
        "keras": keras.__version__,
        "keras_vdrop": keras_vdrop.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
    }


def joined(values):
    """Returns a list as the text of one column."""
    return " ".join(map(str, values))


def deviation(values):
    """Returns the sample standard deviation, or 0 for a single value."""
    return np.std(values, ddof=1) if len(values) > 1 else 0.0


def spread(values, digits=2):
    """Returns mean ± standard deviation as text."""
    text = f"{np.mean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {deviation(values):.{digits}f}"
    return text
