"""The layers under test, and numpy's account of their alpha."""

import keras
import numpy as np
import pytest

import keras_vdrop

POSTERIORS = {
    "layer": {},
    "input": {"granularity": "input"},
    "output": {"granularity": "output"},
    "weight": {"granularity": "weight"},
    "additive": {"granularity": "weight", "parameterization": "additive"},
    "correlated-layer": {"noise": "correlated"},
    "correlated-input": {"noise": "correlated", "granularity": "input"},
}

# Class, arguments, shape of one input.
KERNEL_LAYERS = {
    "dense": (keras_vdrop.VariationalDense, {"units": 4}, (3,)),
    "dense_rank_3": (keras_vdrop.VariationalDense, {"units": 2}, (2, 3)),
    "conv1d_causal": (
        keras_vdrop.VariationalConv1D,
        {
            "filters": 2,
            "kernel_size": 2,
            "padding": "causal",
            "dilation_rate": 2,
        },
        (4, 3),
    ),
    "conv1d_causal_channels_first": (
        keras_vdrop.VariationalConv1D,
        {
            "filters": 2,
            "kernel_size": 2,
            "padding": "causal",
            "data_format": "channels_first",
        },
        (3, 4),
    ),
    "conv2d_strides": (
        keras_vdrop.VariationalConv2D,
        {"filters": 2, "kernel_size": 2, "padding": "same", "strides": 2},
        (3, 3, 2),
    ),
    "conv2d_groups": (
        keras_vdrop.VariationalConv2D,
        {"filters": 4, "kernel_size": (2, 1), "groups": 2},
        (3, 2, 4),
    ),
    "conv3d": (
        keras_vdrop.VariationalConv3D,
        {"filters": 2, "kernel_size": 2},
        (2, 3, 2, 2),
    ),
    "conv2d_channels_first": (
        keras_vdrop.VariationalConv2D,
        {"filters": 2, "kernel_size": 2, "data_format": "channels_first"},
        (3, 3, 2),
    ),
}

# Every posterior on one layer, and on the others one of each way to place
# alpha.
LAYERS_AND_POSTERIORS = [
    pytest.param(case, posterior, id=f"{case}-{name}")
    for case in KERNEL_LAYERS
    for name, posterior in POSTERIORS.items()
    if case == "dense" or name in ("input", "additive", "correlated-input")
]

every_layer_and_posterior = pytest.mark.parametrize(
    "case, posterior", LAYERS_AND_POSTERIORS
)
every_kernel_layer = pytest.mark.parametrize("case", KERNEL_LAYERS)
every_posterior = pytest.mark.parametrize(
    "posterior", POSTERIORS.values(), ids=POSTERIORS
)


def build(case, **arguments):
    """A built layer with a bias, alpha that differs, and an example input."""
    cls, own, shape = KERNEL_LAYERS[case]
    arguments = {"num_examples": 10, "bias_initializer": "ones", **arguments}
    layer = cls(**own, **arguments)
    layer.build((None, *shape))
    generator = np.random.default_rng(1)
    log_alpha = generator.uniform(-2, 0, tuple(layer.log_alpha.shape))
    set_log_alpha(layer, log_alpha)
    return layer, generator.normal(size=(2, *shape)).astype("float32")


def set_log_alpha(layer, value):
    value = np.broadcast_to(value, tuple(layer.log_alpha.shape))
    if layer.parameterization == "additive":
        kernel = keras.ops.convert_to_numpy(layer.kernel)
        tiny = np.finfo("float32").tiny
        layer.log_variance.assign(value + np.log(np.maximum(kernel**2, tiny)))
    else:
        layer.log_alpha.assign(value)


def twin(layer, **changes):
    """The Keras layer with the same weights."""
    config = layer.get_config()
    plain = layer.keras_class()
    own = plain(**KERAS_ARGUMENTS[plain.__name__]).get_config()
    plain = plain.from_config(
        {**{name: config[name] for name in own}, **changes}
    )
    plain.build(layer.get_build_config()["input_shape"])
    plain.set_weights(layer.get_weights()[: len(plain.weights)])
    return plain


KERAS_ARGUMENTS = {
    "Dense": {"units": 1},
    "Conv1D": {"filters": 1, "kernel_size": 1},
    "Conv2D": {"filters": 1, "kernel_size": 1},
    "Conv3D": {"filters": 1, "kernel_size": 1},
}


def alpha_of_weights(layer):
    """Alpha of each weight of the kernel, by the definition."""
    alpha = np.exp(keras.ops.convert_to_numpy(layer.log_alpha))
    *_, inputs, outputs = shape = tuple(layer.kernel.shape)
    if layer.granularity == "input":
        groups = getattr(layer, "groups", 1)
        group = np.arange(outputs) // (outputs // groups)
        alpha = alpha[group * inputs + np.arange(inputs)[:, None]]
    return np.broadcast_to(alpha, shape)


def moments(layer, inputs):
    """Mean and variance of the output, by two plain Keras layers."""
    plain = twin(layer)
    mean = keras.ops.convert_to_numpy(plain(inputs))
    variance = twin(layer, use_bias=False)
    kernel = keras.ops.convert_to_numpy(layer.kernel)
    variance.set_weights([alpha_of_weights(layer) * kernel**2])
    return mean, keras.ops.convert_to_numpy(variance(inputs**2))


def draw(layer, inputs, count):
    """`count` noisy outputs for each input, `(count, *outputs)`."""
    batch = np.tile(inputs, (count,) + (1,) * (inputs.ndim - 1))
    outputs = keras.ops.convert_to_numpy(layer(batch, training=True))
    return outputs.reshape(count, len(inputs), *outputs.shape[1:])
