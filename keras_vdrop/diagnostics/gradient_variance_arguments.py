"""The arguments of `gradient_variance`, checked."""

from typing import Any

import keras

from keras_vdrop import backend
from keras_vdrop.core import validation
from keras_vdrop.core.estimators import ESTIMATORS
from keras_vdrop.models.traversal import every_layer
from keras_vdrop.models.traversal import variational_layers


def check_model(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise validation.invalid("model", "a keras.Model", model)
    if not (model.built and model.compiled):
        raise validation.invalid(
            "model",
            "a model that is built and compiled",
            model,
            "Call `model.compile` with the loss, and the model on some data.",
        )
    # The processes would wait for each other at every operation.
    if backend.spans_processes():
        raise ValueError(
            "`gradient_variance` works in one process, and the variables of "
            "this model are spread over several. Gather them into a model "
            "without a distribution, as docs/distributed.md shows, and call it "
            "with that, before the distribution is set again."
        )


def check_estimators(estimators: Any) -> list[str]:
    choices = (*ESTIMATORS, "none")
    if isinstance(estimators, str) or not estimators:
        raise validation.invalid(
            "estimators", f"a list of some of {choices}", estimators
        )
    return [
        validation.check_choice("estimators", estimator, choices)
        for estimator in estimators
    ]


def chosen_layers(model: keras.Model, layers: Any) -> list[Any]:
    """The layers themselves, of which some may be given by name."""
    chosen: list[Any]
    if layers is None:
        chosen = [
            layer
            for layer in variational_layers(model)
            if hasattr(layer, "kernel")
        ]
    else:
        if isinstance(layers, (str, keras.Layer)):
            layers = [layers]
        every = every_layer(model)
        chosen = [
            next((x for x in every if wanted is x or wanted == x.name), None)
            for wanted in layers
        ]
    names = {getattr(layer, "name", layer) for layer in chosen}
    for layer in chosen:
        kernel = getattr(layer, "kernel", None)
        if kernel is None or not kernel.trainable:
            raise validation.invalid(
                "layers",
                "layers of the model with a trainable kernel, or their names",
                layers,
            )
    if not chosen or len(names) < len(chosen):
        raise validation.invalid(
            "layers",
            "at least one layer with a kernel, each with a name of its own",
            layers,
        )
    return chosen


def number_of_examples(x: Any, y: Any) -> int:
    sizes = {len(array) for array in keras.tree.flatten((x, y))}
    if len(sizes) != 1:
        raise validation.invalid(
            "y", "as many examples as in `x`", sorted(sizes)
        )
    return sizes.pop()
