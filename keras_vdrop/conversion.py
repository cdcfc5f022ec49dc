"""From plain Keras models to variational ones, and back."""

import collections
import inspect

import keras

from keras_vdrop import pruning
from keras_vdrop import validation
from keras_vdrop.layers.conv import VariationalConv1D
from keras_vdrop.layers.conv import VariationalConv2D
from keras_vdrop.layers.conv import VariationalConv3D
from keras_vdrop.layers.dense import VariationalDense
from keras_vdrop.layers.dropout import VariationalDropout
from keras_vdrop.layers.kernel import VariationalKernel
from keras_vdrop.layers.noise import VariationalNoise
from keras_vdrop.objective import variational_layers

VARIATIONAL = {
    cls.keras_class(): cls
    for cls in (
        VariationalDense,
        VariationalConv1D,
        VariationalConv2D,
        VariationalConv3D,
    )
}
# What a layer is given beyond the arguments of the Keras layer.
NOISE_ARGUMENTS = {
    name
    for cls in (VariationalNoise, VariationalKernel)
    for name, parameter in inspect.signature(cls.__init__).parameters.items()
    if parameter.kind == parameter.KEYWORD_ONLY
}


def to_deterministic(model, prune=None, verbose=1):
    """The plain Keras model that a variational one has learned.

    Each variational layer becomes the Keras layer it stands in for, with the
    mean of the posterior as its weights; a `VariationalDropout` becomes a
    `keras.layers.Identity`, which does nothing and costs nothing. Names, all
    other layers and their weights are kept, in nested models and wrappers too.
    The outputs are those of `model.predict`, and a file of the new model needs
    no `keras_vdrop` to be loaded. The model itself is left as it is.

    With `prune`, weights with log alpha above it are set to zero, and units
    that nothing depends on any more are removed, which makes the model smaller
    and faster. Units are removed from a `Dense` or a convolution whose output
    goes to one other such layer, directly or through activations, dropout,
    pooling, `Flatten` and batch normalization, as long as the outputs stay
    those of the model with zeros.

    Args:
        model: A functional or `Sequential` model that can be saved and loaded.
        prune: Float, the largest log alpha that a weight may have to be kept,
            or `None` to keep all. Molchanov et al. use 3, a rate of 0.95.
        verbose: 0 or 1, whether to print what was pruned.

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
    _check_model(model)
    if prune is not None:
        prune = validation.check_limit("prune", prune)
        if not model.built:
            raise validation.invalid(
                "model",
                "a built model, whose weights can be pruned",
                model,
                "Call it on some data first, or give it a `keras.Input`.",
            )
    plain = rebuild(model, _plain)
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
    if prune is None:
        return plain
    zeroed = pruning.zero_noise(layer_pairs(model, plain), prune)
    removal = pruning.plan_removal(plain)
    pruned = rebuild(plain, removal.smaller)
    copy_weights(plain, pruned, removal.select)
    if verbose:
        pruning.report(plain, pruned, zeroed, removal.kept)
    return pruned


def to_variational(model, filter=None, verbose=1, **layer_arguments):
    """A variational model with the weights of a plain one.

    Each `Dense`, `Conv1D`, `Conv2D` and `Conv3D` becomes its variational form
    with the same weights, in nested models and wrappers too, unless `filter`
    leaves it out. Subclasses of these classes and all other layers are left as
    they are. The outputs of `predict` are those of `model`, which is left as
    it is, and `to_deterministic` gives it back.

    Args:
        model: A functional or `Sequential` model that can be saved and loaded.
        filter: Function of a layer that returns `True` to replace it, `False`
            to leave it, or a dict of arguments for this layer alone. By
            default all are replaced.
        verbose: 0 or 1, whether to print which layers with weights were left.
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
      1 Conv2D: features
      1 BatchNormalization: norm
    >>> model.get_layer("scores").rate
    0.1
    """
    _check_model(model)
    _check_filter(filter)
    _check_arguments(layer_arguments)
    replaced = []

    def variational(layer, serialized):
        cls = VARIATIONAL.get(type(layer))
        chosen = cls is not None and _choose(filter, layer)
        if chosen is False:
            return None
        arguments = {**layer_arguments, **chosen}
        if "seed" not in chosen and isinstance(arguments.get("seed"), int):
            # Equal seeds would be equal noise.
            arguments["seed"] += len(replaced)
        replaced.append(layer)
        layer = cls(**{**layer.get_config(), **arguments})
        return {**serialized, **keras.saving.serialize_keras_object(layer)}

    converted = rebuild(model, variational)
    if not replaced:
        raise validation.invalid(
            "model",
            "a model with a Dense or a Conv layer that `filter` takes",
            model,
            "Layers that a class of your own makes have to be replaced there.",
        )
    copy_weights(model, converted)
    if verbose:
        _report(replaced, converted)
    return converted


def _plain(layer, serialized):
    """The serialized form of what a variational layer is at inference."""
    if isinstance(layer, VariationalKernel):
        cls = layer.keras_class()
        # By the method of the Keras class: the arguments that it has.
        plain = cls.from_config(cls.get_config(layer))
    elif isinstance(layer, VariationalDropout):
        # Not left out, so that a functional graph need not be wired anew.
        config = {name: layer.get_config()[name] for name in ("name", "dtype")}
        plain = keras.layers.Identity.from_config(config)
    else:
        return None
    return {**serialized, **keras.saving.serialize_keras_object(plain)}


def _choose(filter, layer):
    """`False`, or a dict of arguments for the layer."""
    chosen = True if filter is None else filter(layer)
    if isinstance(chosen, dict):
        _check_arguments(chosen)
        return chosen
    if chosen not in (True, False):
        raise validation.invalid(
            "filter",
            "a function that returns True, False or a dict of arguments",
            filter,
            f"It returned {chosen!r} for layer '{layer.name}'.",
        )
    return {} if chosen else False


def _report(replaced, converted):
    left = [
        layer
        for layer in converted._flatten_layers()
        if own_weights(layer) and not isinstance(layer, VariationalNoise)
    ]
    kinds = ", ".join(
        f"{len(layers)} {kind}" for kind, layers in _by_class(replaced)
    )
    print(f"{_count(replaced, 'layer')} replaced: {kinds}")
    if left:
        print(f"{_count(left, 'layer')} with weights left alone:")
    for kind, layers in _by_class(left):
        names = ", ".join(layer.name for layer in layers[:3])
        more = f", and {len(layers) - 3} more" if len(layers) > 3 else ""
        print(f"  {len(layers)} {kind}: {names}{more}")


def _by_class(layers):
    groups = collections.defaultdict(list)
    for layer in layers:
        groups[type(layer).__name__].append(layer)
    return groups.items()


def _count(items, noun):
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def rebuild(model, replace):
    """Builds a model again, not compiled and with new weights.

    Args:
        model: A functional or `Sequential` model.
        replace: Function of a layer and its serialized form that returns
            another serialized form, or `None` to leave the layer as it is.
    """
    # Layers of the user need not be registered, and lambdas are no danger:
    # the code is that of a model in memory, not of a file.
    classes = {
        keras.saving.get_registered_name(type(layer)): type(layer)
        for layer in model._flatten_layers()
        if layer is model or not type(layer).__module__.startswith("keras.")
    }
    serialized = {
        "module": type(model).__module__,
        "class_name": type(model).__name__,
        "registered_name": keras.saving.get_registered_name(type(model)),
        "config": _rewrite(model.get_config(), model, replace),
    }
    return keras.saving.deserialize_keras_object(
        serialized, custom_objects=classes, safe_mode=False
    )


def _rewrite(config, owner, replace):
    """Replaces the layers of `owner` in a part of its config."""
    if isinstance(config, (list, tuple)):
        return type(config)(_rewrite(x, owner, replace) for x in config)
    if not isinstance(config, dict):
        return config
    layer = _layer_of(config, owner)
    if layer is not None:
        replaced = replace(layer, config)
        if replaced is not None:
            return replaced
        owner = layer
    return {k: _rewrite(v, owner, replace) for k, v in config.items()}


def _layer_of(config, owner):
    """The layer right inside `owner` that a dict is the config of, if any."""
    own_config = config.get("config")
    if "class_name" not in config or not isinstance(own_config, dict):
        return None
    for layer in owner._flatten_layers(include_self=False, recursive=False):
        if (layer.name, type(layer).__name__) == (
            own_config.get("name"),
            config["class_name"],
        ):
            return layer
    return None


def layer_pairs(source, target):
    """The layers of a model beside those of the model rebuilt from it."""
    sources, targets = source._flatten_layers(), target._flatten_layers()
    if [x.name for x in sources] != [x.name for x in targets]:
        raise validation.invalid(
            "model",
            "a model whose nested models and custom layers share no layers "
            "with one another, and say in their config what they are made of",
            source,
        )
    return list(zip(sources, targets, strict=True))


def own_weights(layer):
    """The weights of a layer without those of its sublayers, as in a file."""
    store = {}
    layer.save_own_variables(store)
    return {
        name: keras.ops.convert_to_numpy(value) for name, value in store.items()
    }


def copy_weights(source, target, select=None):
    """Copies the weights of a model to the model rebuilt from it.

    A replaced layer has weights that the other has not; these are left alone.

    Args:
        source: The model, or a layer.
        target: The model rebuilt from it.
        select: Function of a layer of the source and its weights that returns
            those to copy. By default all are.
    """
    for layer, other in layer_pairs(source, target):
        found, wanted = own_weights(layer), own_weights(other)
        if type(layer) is type(other) and found.keys() != wanted.keys():
            raise validation.invalid(
                "model",
                "a model that is built anew from its config",
                source,
                f"The copy of layer '{layer.name}' has other weights than it.",
            )
        if select is not None:
            found = select(layer, found)
        if wanted:
            other.load_own_variables(
                {
                    **wanted,
                    **{
                        name: value
                        for name, value in found.items()
                        if name in wanted
                    },
                }
            )


def _check_model(model):
    graph = isinstance(model, (keras.Function, keras.Sequential))
    # A class may call the functional constructor in a constructor of its own.
    if not graph or "layers" not in model.get_config():
        raise validation.invalid(
            "model",
            "a functional or Sequential model",
            model,
            "Which layers a subclassed model calls, only its code knows: "
            "replace them there, or convert the functional and Sequential "
            "models it is made of.",
        )


def _check_filter(filter):
    if filter is not None and not callable(filter):
        raise validation.invalid(
            "filter", "a function of a layer, or None", filter
        )


def _check_arguments(arguments):
    unknown = sorted(set(arguments) - NOISE_ARGUMENTS)
    if unknown:
        raise validation.invalid(
            "layer_arguments",
            f"some of {sorted(NOISE_ARGUMENTS)}",
            unknown,
            "What the plain layer has is kept.",
        )
