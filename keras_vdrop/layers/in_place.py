"""A Keras layer that becomes its variational form where it stands.

A layer that the code of its owner makes cannot be replaced: the owner refers
to it. So its class changes. Weights, name and all references to it stay.
"""

import inspect
from typing import Any

import keras

from keras_vdrop.core.arguments import NoiseArguments
from keras_vdrop.layers.base import VariationalLayer


def make_variational(
    layer: Any, form: type[VariationalLayer], arguments: NoiseArguments
) -> None:
    """Gives a plain layer, built or not, the noise of a variational class."""
    if not layer.built:
        _build_noise_later(layer)
    layer.__class__ = form
    _renew_call(layer)
    layer._tracker.unlock()
    layer._check_supported()
    layer.add_noise(arguments)
    if layer.built:
        layer._tracker.lock()


def _renew_call(layer: Any) -> None:
    # Keras looks at `call` when a layer is made (3.15, layers/layer.py).
    layer._call_signature = inspect.signature(layer.call)
    names = list(layer._call_signature.parameters)
    layer.call_signature_parameters = names
    layer._call_has_training_arg = "training" in names
    layer._call_has_mask_arg = "mask" in names
    layer._call_has_context_arg = {
        name: name in names for name in layer._call_has_context_arg
    }


def _build_noise_later(layer: Any) -> None:
    # Keras binds the `build` of the class when a layer is made (3.15,
    # layers/layer.py, `__new__`).
    after_build(layer, lambda: layer.build_noise())


def after_build(layer: Any, then: Any) -> None:
    """Calls a function once, right after a layer is built."""
    plain = layer.build

    def build(*args: Any, **kwargs: Any) -> None:
        layer.build = plain
        plain(*args, **kwargs)
        layer._tracker.unlock()
        then()
        layer._tracker.lock()

    # Keras reads the names of the shapes from it.
    build.__dict__.update(getattr(plain, "__dict__", {}))
    build.__wrapped__ = plain  # type: ignore[attr-defined]
    layer.build = build


def is_plain(layer: keras.Layer) -> bool:
    """Whether a layer is as Keras makes it: no LoRA, no quantization."""
    return (
        getattr(layer, "lora_enabled", False) is False
        and getattr(layer, "quantization_mode", None) is None
    )
