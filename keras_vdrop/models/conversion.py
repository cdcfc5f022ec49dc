"""From plain Keras models to variational ones, and back."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_vdrop import backend
from keras_vdrop.core import validation
from keras_vdrop.core.seeds import check_seed
from keras_vdrop.core.seeds import derived_seed
from keras_vdrop.layers.base import VariationalLayer
from keras_vdrop.layers.in_place import make_variational
from keras_vdrop.layers.variational import Variational
from keras_vdrop.models import pruning
from keras_vdrop.models import rounding
from keras_vdrop.models.batch_normalization import update_batch_normalization
from keras_vdrop.models.conversion_arguments import check_arguments
from keras_vdrop.models.conversion_arguments import check_filter
from keras_vdrop.models.conversion_arguments import check_model
from keras_vdrop.models.conversion_arguments import choose
from keras_vdrop.models.conversion_report import report_conversion
from keras_vdrop.models.converted import mark_owners
from keras_vdrop.models.plain_form import plain_form
from keras_vdrop.models.rebuild import copy_weights
from keras_vdrop.models.rebuild import layer_pairs
from keras_vdrop.models.rebuild import rebuild
from keras_vdrop.models.traversal import every_layer
from keras_vdrop.models.traversal import variational_layers
from keras_vdrop.models.variational_form import VARIATIONAL
from keras_vdrop.models.variational_form import can_change
from keras_vdrop.models.variational_form import has_form
from keras_vdrop.models.variational_form import variational_form


def to_deterministic(
    model: keras.Model,
    prune: float | None = None,
    verbose: int = 1,
    safe_mode: bool = True,
    batch_normalization_data: Any = None,
    precision: float | None = None,
) -> keras.Model:
    """The plain Keras model that a variational one has learned.

    Each variational layer becomes the Keras layer it stands in for, with the
    mean of the posterior as its weights; a `VariationalDropout` becomes a
    `keras.layers.Identity`, which does nothing and costs nothing, and a
    `Variational` the layer inside it, under the name of the wrapper. Names, all
    other layers and their weights are kept, in nested models and wrappers too.
    The outputs are those of `model.predict`, and a file of the new model needs
    no `keras_vdrop` to be loaded. The model itself is left as it is.

    With `prune`, weights with log alpha above it are set to zero, and units
    that nothing depends on any more are removed, which makes the model smaller
    and faster: outputs of `Dense` layers and embeddings, channels of
    convolutions, also of depthwise and separable ones, states of recurrent
    layers, heads of attention. What a sum adds goes together, as in residual
    networks. The outputs stay those of the model with zeros.

    With `precision`, weights are rounded to as many digits as the noise leaves
    them: to multiples of a power of two near `precision` standard deviations
    of the posterior, for each kernel that of its median weight. The bias has
    the grid of its kernel. `keras_vdrop.save_compressed` stores such weights
    in few bytes, and `keras_vdrop.compress` chooses `prune` and `precision` on
    data.

    Args:
        model: A model that can be saved and loaded: functional, `Sequential`,
            or of a class with a config.
        prune: Float, the largest log alpha that a weight may have to be kept,
            or `None` to keep all. Molchanov et al. use 3, a rate of 0.95.
        verbose: 0 or 1, whether to print what was pruned.
        safe_mode: Boolean, whether to refuse Python code in the config of the
            model, as in `keras.saving.load_model`. The functions of `Lambda`
            layers are handed on as they are.
        batch_normalization_data: Training data, for which the moving averages
            of batch normalization are estimated anew, as
            `keras_vdrop.update_batch_normalization` does, or `None` to keep
            them.
        precision: Float above 0, the step of the rounded weights in standard
            deviations of the posterior, or `None` not to round them. About 1
            hardly changes the outputs.

    Returns:
        A model of the class of `model`, not compiled.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_vdrop
    >>> model = keras.Sequential([
    ...     keras.Input((3,)),
    ...     keras_vdrop.VariationalDense(4, activation="relu"),
    ...     keras_vdrop.VariationalDense(2),
    ... ])
    >>> plain = keras_vdrop.to_deterministic(model)
    >>> [type(layer).__name__ for layer in plain.layers]
    ['Dense', 'Dense']
    >>> x = np.ones((5, 3))
    >>> same = plain.predict(x, verbose=0) == model.predict(x, verbose=0)
    >>> bool(same.all())
    True

    Reference:

    - [Molchanov, Ashukha, Vetrov, 2017](https://arxiv.org/abs/1701.05369)
    """
    check_model(model)
    validation.check_bool("safe_mode", safe_mode)
    if precision is not None:
        precision = validation.check_positive("precision", precision)
    if prune is not None:
        prune = validation.check_limit("prune", prune)
    if prune is not None or precision is not None:
        if not model.built:
            raise validation.invalid(
                "model",
                "a built model, whose weights can be pruned or rounded",
                model,
                "Call it on some data first, or give it a `keras.Input`.",
            )
    plain = rebuild(model, _plain, safe_mode)
    left = variational_layers(plain)
    if left:
        raise validation.invalid(
            "model",
            "a model whose layers are in its config",
            model,
            f"Layer '{left[0].name}' is made by the code of a class of yours, "
            f"which has to make a `keras.layers."
            f"{left[0].keras_class().__name__}` instead.",
        )
    copy_weights(model, plain)
    if batch_normalization_data is not None:
        update_batch_normalization(plain, batch_normalization_data)
    # What `keras_vdrop.prune` has taken out is infinite.
    threshold = float(np.finfo("float32").max) if prune is None else prune
    pairs = layer_pairs(model, plain)
    zeroed = pruning.zero_noise(model, pairs, threshold)
    steps = {}
    if precision is not None:
        steps = rounding.round_to_noise(model, pairs, precision)
    if prune is not None:
        # Behind the rounding, which makes more zeros.
        removal = pruning.plan_removal(plain)
        whole = plain
        with backend.whole_where_uneven():
            plain = rebuild(whole, removal.smaller, safe_mode)
        copy_weights(whole, plain, removal.select)
        smaller = dict(layer_pairs(whole, plain))
        steps = {smaller[layer]: step for layer, step in steps.items()}
        if verbose:
            pruning.report(whole, plain, zeroed, removal.kept)
    # Behind the removal, which adds constants to them.
    rounding.round_biases(steps)
    return plain


def to_variational(
    model: keras.Model,
    filter: Callable | None = None,
    verbose: int = 1,
    safe_mode: bool = True,
    **layer_arguments: Any,
) -> keras.Model:
    """A variational model with the weights of a plain one.

    Each Keras layer that a layer of `keras_vdrop.layers` stands in for becomes
    its variational form with the same weights, in nested models and wrappers
    too, unless `filter` leaves it out; so does each layer that the code of a
    class makes, such as those of a backbone of keras_hub. Subclasses of these
    classes and all other layers are left as they are. The outputs of `predict`
    are those of `model`, which is left as it is, and `to_deterministic` gives
    it back.

    Args:
        model: A built model that can be saved and loaded: functional,
            `Sequential`, or of a class with a config.
        filter: Function of a layer that returns `True` to replace it, `False`
            to leave it, or a dict of arguments for this layer alone. By
            default all are replaced.
        verbose: 0 or 1, whether to print which layers were replaced, and which
            layers with weights were left, with the reason.
        safe_mode: Boolean, whether to refuse Python code in the config of the
            model, as in `keras.saving.load_model`. The functions of `Lambda`
            layers are handed on as they are.
        **layer_arguments: Arguments of the variational layers: `rate`,
            `noise`, `granularity`, `kl`, `num_examples`... With a `seed`, each
            layer has one of its own, which follows from it.

    Returns:
        A model of the class of `model`, not compiled.

    Example:

    >>> import keras
    >>> import keras_vdrop
    >>> plain = keras.Sequential([
    ...     keras.Input((8, 8, 3)),
    ...     keras.layers.Conv2D(4, 3, name="features"),
    ...     keras.layers.BatchNormalization(name="norm"),
    ...     keras.layers.Flatten(),
    ...     keras.layers.Dense(2, name="scores"),
    ... ])
    >>> model = keras_vdrop.to_variational(
    ...     plain, lambda layer: layer.name != "features", rate=0.1
    ... )
    1 layer replaced: 1 Dense
    2 layers with weights left alone:
      1 Conv2D (left out by `filter`): features
      1 BatchNormalization (no variational form): norm
    >>> model.get_layer("scores").rate
    0.1
    """
    check_model(model)
    check_filter(filter)
    check_arguments(layer_arguments)
    validation.check_bool("safe_mode", safe_mode)
    seed = check_seed(layer_arguments.get("seed"))
    replaced: list[keras.Layer] = []
    # The layer inside a `Variational` has its noise from there.
    inside = {
        id(part)
        for layer in variational_layers(model)
        for part in every_layer(layer)
    }

    listed: set[int] = set()
    filtered: set[int] = set()

    def arguments_for(layer: keras.Layer) -> dict | None:
        if not has_form(layer) or id(layer) in inside:
            return None
        chosen = choose(filter, layer)
        if chosen is None:
            filtered.add(id(layer))
            return None
        arguments = {**layer_arguments, **chosen}
        if "seed" not in chosen and seed is not None:
            arguments["seed"] = derived_seed(seed, len(replaced))
        replaced.append(layer)
        return arguments

    def variational(layer: keras.Layer, serialized: dict) -> Any:
        del serialized
        listed.add(id(layer))
        arguments = arguments_for(layer)
        if arguments is None:
            return None
        return variational_form(layer, arguments)

    converted = rebuild(model, variational, safe_mode)
    for layer, other in layer_pairs(model, converted):
        if isinstance(other, VariationalLayer) or id(layer) in listed:
            continue
        if isinstance(layer, VariationalLayer):
            make_variational(other, type(layer), layer.noise_arguments)
        elif can_change(layer):
            arguments = arguments_for(layer)
            if arguments is not None:
                form = VARIATIONAL[type(layer)]
                make_variational(other, form, form.arguments_of(**arguments))
    mark_owners(converted)
    if not replaced:
        raise validation.invalid(
            "model",
            "a model with a layer that has a variational form and that "
            "`filter` takes",
            model,
            "Layers that a class of your own makes have to be replaced there.",
        )
    copy_weights(model, converted)
    pairs = layer_pairs(model, converted)
    for layer, other in pairs:
        replacing = isinstance(other, VariationalLayer)
        if replacing and type(layer) is not type(other):
            # The variance of the additive posterior depends on the kernel.
            other.reset_noise()
    if verbose:
        report_conversion(replaced, pairs, filtered)
    return converted


def _plain(layer: keras.Layer, serialized: dict) -> Any:
    if isinstance(layer, Variational):
        inside = serialized["config"]["layer"]
        # The name by which a functional model knows the wrapper.
        config = {**inside["config"], "name": layer.name}
        build_config = inside.get("build_config")
        return {
            **serialized,
            **inside,
            "config": config,
            "build_config": build_config,
        }
    return plain_form(layer) if isinstance(layer, VariationalLayer) else None
