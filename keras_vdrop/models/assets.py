"""What layers know beyond their config and weights: vocabularies, files."""

import tempfile

import keras

LOOKUPS = (
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)


def copy_assets(source: keras.Layer, target: keras.Layer) -> None:
    """Copies what a layer would write into a file beside its weights."""
    if isinstance(source, LOOKUPS):
        copy_vocabulary(source, target)
    elif hasattr(source, "save_assets") and hasattr(target, "load_assets"):
        with tempfile.TemporaryDirectory() as folder:
            source.save_assets(folder)
            target.load_assets(folder)


def copy_vocabulary(source: keras.Layer, target: keras.Layer) -> None:
    """Copies the vocabulary of a lookup, with its weights if it has some.

    Not as a file: Keras's has a word on each line (3.15,
    layers/preprocessing/index_lookup.py), and words can have line breaks.
    """
    vocabulary = source.get_vocabulary()
    # One that is in the config is there already, and one that was never
    # adapted has none, which could not be set.
    if vocabulary == target.get_vocabulary():
        return
    weights: dict = {}
    source.save_own_variables(weights)
    if not weights:
        target.set_vocabulary(vocabulary)
        return
    # Keras fills up with zeros what it filled up before.
    frequencies = weights["idf_weights"][: len(vocabulary)]
    target.set_vocabulary(vocabulary, idf_weights=frequencies)
