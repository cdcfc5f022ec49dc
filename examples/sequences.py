"""Text and sequences: what do learned rates give a transformer or an LSTM?

    python examples/sequences.py transformer
    python examples/sequences.py lstm
    python examples/sequences.py rows

This program trains small networks without dropout, with dropout, and with
variational layers. `transformer` and `lstm` read a name, letter by letter, and
say in which of 16 languages it is: the names of countries, languages,
currencies and scripts that the package Babel holds. Some names are the same in
several languages, so a good network is sometimes unsure. `rows` is an LSTM that
reads scikit-learn's digits row by row. Nothing is downloaded.

For each seed the examples are split anew: a fifth of the names, or a third of
the digits, to train on, and as many for validation. The rate of dropout and the
number of epochs are chosen by the likelihood of validation examples. The
program reports error, negative log-likelihood (NLL) and expected calibration
error (ECE) on test examples, of the mean weights and of sampled predictions.

Each finished run is appended to a CSV file. A second start skips the runs in
that file.
"""

import functools
import sys

import keras
import numpy as np

from shared.candidates import NOISE
from shared.candidates import Kinds
from shared.candidates import candidates
from shared.candidates import report
from shared.candidates import try_candidate
from shared.data import load_digits
from shared.options import new_parser
from shared.results import Results

METHODS = ("plain", "dropout", *NOISE)
LANGUAGES = "cs da de en es fi fr hu it nb nl pl pt ro sv tr".split()
LENGTH = 20


@functools.cache
def names():
    """Returns for each name its forms, one for each of the languages."""
    try:
        from babel import Locale
    except ImportError:
        sys.exit("The names are in a package: pip install babel.")
    kinds = ("territories", "languages", "currencies", "scripts")
    found = [
        {
            (kind, key): name
            for kind in kinds
            for key, name in getattr(Locale(language), kind).items()
        }
        for language in LANGUAGES
    ]
    keys = sorted(set.intersection(*map(set, found)))
    return [[forms[key] for forms in found] for key in keys]


def load_names(seed, limit):
    """Returns letters and languages: a name is in one part, in all languages.

    A letter is a number from 2 on. 0 is what is behind the name, and 1 is a
    letter that no training name has.
    """
    order = np.random.default_rng(seed).permutation(len(names()))[:limit]
    # Few to learn from: what is left is for the test.
    few = len(order) // 5
    parts = [
        [names()[index] for index in part]
        for part in np.split(order, [few, 2 * few])
    ]
    letters = sorted({x for forms in parts[0] for x in "".join(forms)})
    code = {letter: number for number, letter in enumerate(letters, 2)}

    def encoded(forms):
        x = np.zeros((len(forms) * len(LANGUAGES), LENGTH), "int32")
        for row, name in enumerate(name for form in forms for name in form):
            found = [code.get(letter, 1) for letter in name[:LENGTH]]
            x[row, : len(found)] = found
        return x, np.tile(np.arange(len(LANGUAGES)), len(forms))

    return [encoded(part) for part in parts]


def load_rows(seed, limit):
    """Returns digits as sequences of 8 rows, and their classes."""
    parts = load_digits()
    x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.random.default_rng(seed).permutation(len(x))[:limit]
    x, y = x[order].reshape(-1, 8, 8), y[order]
    return list(zip(np.array_split(x, 3), np.array_split(y, 3), strict=True))


def transformer(kinds, width=48, blocks=1):
    inputs = keras.Input((LENGTH,), dtype="int32")
    is_letter = keras.ops.not_equal(inputs, 0)
    x = kinds.layer("Embedding", 256, width)(inputs)
    places = keras.ops.arange(LENGTH)
    x = x + keras.layers.Embedding(LENGTH, width)(places)
    for _ in range(blocks):
        normal = kinds.dropout(keras.layers.LayerNormalization()(x))
        attention = kinds.layer("MultiHeadAttention", 4, width // 4)
        mask = is_letter[:, None, :]
        x = x + attention(normal, normal, attention_mask=mask)
        normal = kinds.dropout(keras.layers.LayerNormalization()(x))
        hidden = kinds.layer("Dense", 2 * width, activation="relu")(normal)
        x = x + kinds.layer("Dense", width)(kinds.dropout(hidden))
    weights = keras.ops.cast(is_letter, "float32")[..., None]
    x = keras.layers.LayerNormalization()(x)
    x = keras.ops.sum(x * weights, 1) / keras.ops.sum(weights, 1)
    outputs = kinds.layer("Dense", len(LANGUAGES))(kinds.dropout(x))
    return keras.Model(inputs, outputs)


def lstm(kinds, width=64):
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = kinds.layer("Embedding", 256, 32, mask_zero=True)(inputs)
    x = kinds.recurrent("LSTM", width)(x)
    outputs = kinds.layer("Dense", len(LANGUAGES))(kinds.dropout(x))
    return keras.Model(inputs, outputs)


def rows(kinds, width=64):
    inputs = keras.Input((8, 8))
    x = kinds.recurrent("LSTM", width)(inputs)
    return keras.Model(inputs, kinds.layer("Dense", 10)(kinds.dropout(x)))


# The network, its data, the rate of Adam, at most so many epochs, and so many
# without improvement.
TASKS = {
    "transformer": (transformer, load_names, 1e-3, 80, 10),
    "lstm": (lstm, load_names, 3e-3, 80, 10),
    "rows": (rows, load_rows, 3e-3, 400, 30),
}


def main():
    parser = new_parser(__doc__)
    parser.add_argument("tasks", nargs="+", choices=tuple(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=list(METHODS[:3])
    )
    parser.add_argument("--epochs", type=int, help="at most so many")
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument(
        "--limit", type=int, help="use fewer data, for a quick try"
    )
    parser.add_argument("--out", default="sequences.csv")
    options = parser.parse_args()
    results = Results(options.out)
    for seed in options.seeds:
        for task in options.tasks:
            network, load, learning_rate, epochs, patience = TASKS[task]
            data = load(seed, options.limit)
            for method, rate in candidates(options.methods):
                settings = {
                    "task": task,
                    "method": method,
                    "rate": rate,
                    "seed": seed,
                    "epochs": options.epochs or epochs,
                    "train_examples": len(data[0][0]),
                    "samples": options.samples,
                }
                kinds = Kinds(method, rate)
                try_candidate(
                    results,
                    settings,
                    functools.partial(network, kinds),
                    data,
                    options.samples,
                    learning_rate=learning_rate,
                    epochs=options.epochs or epochs,
                    patience=patience,
                    batch_size=options.batch_size,
                )
    for task in options.tasks:
        print(f"\n{task}\n")
        report(results.select(task=task))


if __name__ == "__main__":
    main()
