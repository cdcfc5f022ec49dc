"""A model built again from its config, with some of its layers replaced."""

from collections.abc import Callable
from typing import Any

import keras

from keras_vdrop import backend
from keras_vdrop.core import validation
from keras_vdrop.layers.base import VariationalLayer
from keras_vdrop.layers.variational import Variational
from keras_vdrop.models.assets import LOOKUPS
from keras_vdrop.models.assets import copy_assets
from keras_vdrop.models.converted import Converted
from keras_vdrop.models.converted import plain_class
from keras_vdrop.models.converted import plain_config
from keras_vdrop.models.traversal import children
from keras_vdrop.models.traversal import every_layer
from keras_vdrop.models.traversal import own_noise


def rebuild(
    model: keras.Model, replace: Callable, safe_mode: bool = True
) -> keras.Model:
    """Builds a model again, not compiled and with new weights.

    The classes of the layers, which need not be registered, and the functions
    of `Lambda` layers are those of the model in memory.

    Args:
        model: A functional or `Sequential` model.
        replace: Function of a layer and its serialized form that returns
            another layer, another serialized form, or `None` to leave the
            layer as it is.
        safe_mode: Boolean, whether to refuse Python code in the config. A
            model that was loaded in safe mode can have some in places that
            Keras has not looked at.
    """
    objects = _Objects(model)
    cls = plain_class(model)
    serialized = {
        "module": cls.__module__,
        "class_name": cls.__name__,
        "registered_name": objects.name(cls),
        "config": _Rewriting(objects, replace, safe_mode).of(
            plain_config(model), model
        ),
    }
    rebuilt = keras.saving.deserialize_keras_object(
        serialized, custom_objects=objects.by_name, safe_mode=safe_mode
    )
    if model.built and not rebuilt.built:
        rebuilt.build_from_config(model.get_build_config())
    return rebuilt


class _Objects:
    """Names for classes, each its own: a user can have two of one name."""

    def __init__(self, model: keras.Model):
        self.by_name: dict[str, Any] = {}
        # By the usual names too, for configs that are not those of a layer.
        for layer in every_layer(model):
            if not self.is_known(layer):
                name = keras.saving.get_registered_name(plain_class(layer))
                self.by_name[name] = plain_class(layer)
        self._names: dict[Any, str] = {}

    def is_known(self, layer: keras.Layer) -> bool:
        """Whether Keras finds its class without help."""
        return plain_class(layer).__module__.startswith("keras.")

    def name(self, found: Any) -> str:
        if found not in self._names:
            self._names[found] = f"keras_vdrop.rebuild>{len(self._names)}"
            self.by_name[self._names[found]] = found
        return self._names[found]


class _SameFunctions:
    """Stands for the class of a `Lambda`: hands on the functions of one.

    No code is made of a config, and a function keeps what it refers to.
    """

    def __init__(self, layer: Any):
        self.layer = layer

    def from_config(self, config: dict) -> keras.Layer:
        layer = self.layer
        own = keras.Layer.get_config(layer)
        return keras.layers.Lambda(
            layer.function,
            output_shape=layer._output_shape,
            mask=layer.mask,
            arguments=dict(layer.arguments),
            **{name: config[name] for name in own},
        )


class _Rewriting:
    """The config of a model with some of its layers replaced."""

    def __init__(self, objects: _Objects, replace: Callable, safe_mode: bool):
        self.objects = objects
        self.replace = replace
        self.safe_mode = safe_mode

    def of(self, config: Any, owner: keras.Layer) -> Any:
        """Replaces the layers of `owner` in a part of its config."""
        if isinstance(config, (list, tuple)):
            return type(config)(self.of(x, owner) for x in config)
        if not isinstance(config, dict):
            return config
        layer = _layer_of(config, owner)
        if layer is not None:
            if type(layer) is keras.layers.Lambda:
                name = self.objects.name(_SameFunctions(layer))
                return {**config, "registered_name": name}
            if isinstance(layer, Converted):
                config = {**config, **config["config"]["plain"]}
            config = self.named(config, layer)
            replaced = self.replace(layer, config)
            if isinstance(replaced, keras.Layer):
                other = keras.saving.serialize_keras_object(replaced)
                return self.named({**config, **other}, replaced)
            owner = layer
            config = config if replaced is None else replaced
        if self.safe_mode and config.get("class_name") == "__lambda__":
            raise validation.invalid(
                "model",
                "a model without Python code in its config",
                owner.name,
                f"Layer '{owner.name}' has a lambda in it. Use a function "
                "with a name, registered by "
                "`keras.saving.register_keras_serializable`. If you trust "
                "the origin of the model, pass `safe_mode=False`.",
            )
        return {k: self.of(v, owner) for k, v in config.items()}

    def named(self, config: dict, layer: keras.Layer) -> dict:
        """The serialized form of a layer, by a name for its class alone."""
        if self.objects.is_known(layer):
            return config
        return {
            **config,
            "registered_name": self.objects.name(plain_class(layer)),
        }


def _layer_of(config: dict, owner: keras.Layer) -> keras.Layer | None:
    """The layer right inside `owner` that a dict is the config of, if any."""
    own_config = config.get("config")
    if "class_name" not in config or not isinstance(own_config, dict):
        return None
    class_name = config["class_name"]
    # Keras may have another name for a class than the class itself, such as
    # `GroupQueryAttention` (3.15).
    public = getattr(keras.layers, class_name, None)
    for layer in children(owner):
        cls = type(layer)
        same_class = cls is public or cls.__name__ == class_name
        if same_class and layer.name == own_config.get("name"):
            return layer
    return None


def layer_pairs(
    source: keras.Layer, target: keras.Layer
) -> list[tuple[keras.Layer, keras.Layer]]:
    """The layers of a model beside those of the model rebuilt from it."""
    pairs: list[tuple[keras.Layer, keras.Layer]] = []
    partner: dict[int, int] = {}
    if not _join(source, target, pairs, partner):
        raise validation.invalid(
            "model",
            "a model whose nested models and custom layers share no layers "
            "with one another, and say in their config what they are made of",
            source,
        )
    return pairs


def _join(source: Any, target: Any, pairs: list, partner: dict) -> bool:
    """Adds two layers and what is in them, and tells whether it is the same."""
    if isinstance(source, Variational) and not isinstance(target, Variational):
        # Its place has the layer that was inside it.
        source = source.layer
    # Keras names some layers inside others anew each time.
    same_name = source.name == target.name
    if not same_name and _keras_class(source) is not _keras_class(target):
        return False
    if id(source) in partner or id(target) in partner:
        return partner.get(id(source)) == id(target)
    partner[id(source)], partner[id(target)] = id(target), id(source)
    pairs.append((source, target))
    ours, theirs = children(source), children(target)
    if source.built and not target.built and not source.weights:
        # A preprocessor makes some of its parts with its first batch.
        ours = ours[: len(theirs)]
    return len(ours) == len(theirs) and all(
        _join(a, b, pairs, partner) for a, b in zip(ours, theirs, strict=True)
    )


def _keras_class(layer: keras.Layer) -> Any:
    """The class of a layer without what this library adds to it."""
    if isinstance(layer, VariationalLayer):
        return layer.keras_class()
    return plain_class(layer)


def own_weights(layer: keras.Layer) -> dict[str, Any]:
    """The weights of a layer without those of its sublayers, as in a file.

    The noise of a variational layer counts as its own.
    """
    store: dict[str, Any] = {}
    # The weights of a lookup belong to its vocabulary.
    if not isinstance(layer, LOOKUPS):
        layer.save_own_variables(store)
    for weight in own_noise(layer) if layer.built else ():
        parts: dict[str, Any] = {}
        weight.save_own_variables(parts)
        store.update({f"{weight.name}/{k}": v for k, v in parts.items()})
    return dict(zip(store, backend.to_numpy([*store.values()]), strict=True))


def load_own_weights(layer: keras.Layer, weights: dict[str, Any]) -> None:
    """The inverse of `own_weights`."""
    own = {name: w for name, w in weights.items() if "/" not in name}
    if own:
        layer.load_own_variables(own)
    for weight in own_noise(layer):
        start = f"{weight.name}/"
        parts = {
            name.removeprefix(start): value
            for name, value in weights.items()
            if name.startswith(start)
        }
        if parts:
            weight.load_own_variables(parts)


def copy_weights(
    source: keras.Layer, target: keras.Layer, select: Callable | None = None
) -> None:
    """Copies weights and vocabularies of a model to the one rebuilt from it.

    A replaced layer has weights that the other has not; these are left alone.

    Args:
        source: The model, or a layer.
        target: The model rebuilt from it.
        select: Function of a layer of the source and its weights that returns
            those to copy. By default all are.
    """
    pairs = layer_pairs(source, target)
    for layer, other in pairs:
        found, wanted = own_weights(layer), own_weights(other)
        if select is not None:
            found = select(layer, found)
        wanted.update({k: w for k, w in found.items() if _is_pruned(k, wanted)})
        if type(layer) is type(other) and found.keys() != wanted.keys():
            raise validation.invalid(
                "model",
                "a model that is built anew from its config",
                source,
                f"The copy of layer '{layer.name}' has other weights than it.",
            )
        shared = {name: w for name, w in found.items() if name in wanted}
        load_own_weights(other, {**wanted, **shared})
    for layer, other in [*pairs, *_untracked_pairs(pairs)]:
        copy_assets(layer, other)


def _is_pruned(name: str, wanted: dict) -> bool:
    """Whether it says which weights of a noise that is wanted were pruned."""
    weight, _, variable = name.rpartition("/")
    return variable == "pruned" and f"{weight}/seed_state" in wanted


def _untracked_pairs(pairs: list) -> list:
    """Layers that are attributes of others, although Keras does not know it.

    On torch the preprocessor of a task of keras_hub is one.
    """
    known = {id(layer) for layer, _ in pairs}
    found = []
    for layer, other in pairs:
        for name, part in vars(layer).items():
            is_new = isinstance(part, keras.Layer) and id(part) not in known
            if is_new and type(vars(other).get(name)) is type(part):
                found += layer_pairs(part, vars(other)[name])
    return found
