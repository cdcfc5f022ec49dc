"""Owners of variational layers that their own code makes plain.

A backbone of keras_hub, or a layer of a user, makes the layers inside it in
its code. Its config does not say that these are variational. Such an owner
becomes a `Converted`: it is an instance of its class still, and its config is
the plain one together with the noise of the layers inside, by their places.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from keras_vdrop.layers.base import VariationalLayer
from keras_vdrop.layers.in_place import after_build
from keras_vdrop.layers.in_place import make_variational
from keras_vdrop.models.traversal import children
from keras_vdrop.models.variational_form import VARIATIONAL

PACKAGE, NAME = "keras_vdrop", "Converted"


@keras.saving.register_keras_serializable(package=PACKAGE, name=NAME)
class Converted:
    """Mixin: an owner whose own config does not know its variational layers."""

    plain_class: Any = None

    def get_config(self: Any) -> dict[str, Any]:
        with as_plain(self):
            plain = keras.saving.serialize_keras_object(self)
        plain.pop("compile_config", None)
        plain.pop("build_config", None)
        noise = {
            "/".join(map(str, place)): layer.noise_arguments.as_dict()
            for place, layer in hidden_layers(self)
            if isinstance(layer, VariationalLayer)
        }
        return {"name": self.name, "plain": plain, "noise": noise}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> keras.Layer:
        layer = keras.saving.deserialize_keras_object(
            config["plain"], custom_objects=custom_objects
        )
        noise = config["noise"]
        if layer.built:
            _restore(layer, noise)
        else:
            after_build(layer, lambda: _restore(layer, noise))
        return layer


_classes: dict[type, type] = {}


def mark(owner: Any) -> None:
    """Makes an owner a `Converted`, so that files have its noise."""
    plain = type(owner)
    if issubclass(plain, Converted):
        return
    if plain not in _classes:
        namespace = {"plain_class": plain, "__module__": plain.__module__}
        metaclass: Any = type(plain)
        made = metaclass(plain.__name__, (Converted, plain), namespace)
        # All under one name, by which `from_config` above is found.
        register = keras.saving.register_keras_serializable(PACKAGE, NAME)
        _classes[plain] = register(made)
    owner.__class__ = _classes[plain]


@contextlib.contextmanager
def as_plain(layer: Any) -> Iterator[None]:
    """A layer of its own class for a while."""
    cls = type(layer)
    layer.__class__ = plain_class(layer)
    try:
        yield
    finally:
        layer.__class__ = cls


def plain_class(layer: keras.Layer) -> Any:
    """The class of a layer, whether it is converted or not."""
    return layer.plain_class if isinstance(layer, Converted) else type(layer)


def plain_config(layer: keras.Layer) -> dict[str, Any]:
    with as_plain(layer):
        return layer.get_config()


def hidden_layers(owner: keras.Layer) -> Iterator[tuple[tuple, keras.Layer]]:
    """Places and layers below an owner that no config lists."""
    listed = _listed_names(plain_config(owner))
    for number, child in enumerate(children(owner)):
        if child.name not in listed:
            yield from _below(child, (number,))


def _below(layer: keras.Layer, place: tuple) -> Iterator:
    yield place, layer
    if not isinstance(layer, VariationalLayer):
        for number, child in enumerate(children(layer)):
            yield from _below(child, (*place, number))


def _listed_names(config: Any) -> set[str]:
    """Names of all layers that a config describes."""
    if isinstance(config, (list, tuple)):
        return set().union(*map(_listed_names, config))
    if not isinstance(config, dict):
        return set()
    found = set().union(*map(_listed_names, config.values()))
    own = config.get("config")
    if "class_name" in config and isinstance(own, dict) and "name" in own:
        found.add(own["name"])
    return found


def _restore(owner: keras.Layer, noise: dict[str, dict]) -> None:
    """Switches noise on in the layers at some places."""
    for place, arguments in noise.items():
        layer = owner
        for number in place.split("/"):
            layer = children(layer)[int(number)]
        # A layer that another owner shares has its noise already.
        if not isinstance(layer, VariationalLayer):
            form = VARIATIONAL[type(layer)]
            make_variational(layer, form, form.arguments_of(**arguments))
    mark(owner)


def mark_owners(model: keras.Layer) -> None:
    """Marks every layer that hides variational layers from its config."""
    listed = _listed_names(plain_config(model))
    for child in children(model):
        if child.name in listed and not isinstance(child, VariationalLayer):
            mark_owners(child)
    hidden = [layer for _, layer in hidden_layers(model)]
    if any(isinstance(layer, VariationalLayer) for layer in hidden):
        mark(model)
