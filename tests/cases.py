"""The layers under test, and numpy's account of their alpha."""

import keras
import numpy as np
import pytest

import keras_vdrop

POSTERIORS = {
    "layer": {"noise": "independent"},
    "input": {"noise": "independent", "granularity": "input"},
    "output": {"granularity": "output"},
    "weight": {"granularity": "weight"},
    "additive": {"granularity": "weight", "parameterization": "additive"},
    "correlated-layer": {"noise": "correlated"},
    "correlated-input": {"noise": "correlated", "granularity": "input"},
}

# tensorflow has no transposed convolution of the others on a CPU.
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
FIRST_IF_POSSIBLE = "channels_last" if ON_TENSORFLOW else "channels_first"
DILATION = 1 if ON_TENSORFLOW else 2

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
    "depthwise_conv2d": (
        keras_vdrop.VariationalDepthwiseConv2D,
        {"kernel_size": (2, 1), "depth_multiplier": 2, "padding": "same"},
        (3, 2, 3),
    ),
    "depthwise_conv1d": (
        keras_vdrop.VariationalDepthwiseConv1D,
        {"kernel_size": 2, "depth_multiplier": 2, "strides": 2},
        (4, 3),
    ),
    "conv1d_transpose": (
        keras_vdrop.VariationalConv1DTranspose,
        {"filters": 2, "kernel_size": 2, "dilation_rate": DILATION},
        (3, 3),
    ),
    "conv2d_transpose": (
        keras_vdrop.VariationalConv2DTranspose,
        {
            "filters": 2,
            "kernel_size": (2, 1),
            "strides": (2, 1),
            "padding": "same",
            "output_padding": (0, 0),
            "data_format": FIRST_IF_POSSIBLE,
        },
        (2, 2, 2),
    ),
    "conv3d_transpose": (
        keras_vdrop.VariationalConv3DTranspose,
        {"filters": 2, "kernel_size": (1, 2, 1)},
        (1, 2, 2, 2),
    ),
    "einsum_dense": (
        keras_vdrop.VariationalEinsumDense,
        {
            "equation": "abc,cde->abde",
            "output_shape": (None, 2, 2),
            "bias_axes": "e",
        },
        (2, 3),
    ),
    # An index that inputs, kernel and outputs have.
    "einsum_dense_shared": (
        keras_vdrop.VariationalEinsumDense,
        {
            "equation": "abc,bcd->adb",
            "output_shape": (2, 2),
            "bias_axes": "d",
        },
        (2, 3),
    ),
}

# The axes of one input, and of one output, that are not positions. By default
# the last.
UNITS = {
    "conv1d_causal_channels_first": ((0,), (0,)),
    "conv2d_channels_first": ((0,), (0,)),
    "einsum_dense": ((1,), (1, 2)),
    "einsum_dense_shared": ((0, 1), (0, 1)),
}
if FIRST_IF_POSSIBLE == "channels_first":
    UNITS["conv2d_transpose"] = (0,), (0,)

# Every posterior on one layer, and on the others one of each way to place
# alpha.
# The quick tests have layers that are unlike each other; CI has all.
QUICK = ("dense", "conv2d_groups", "einsum_dense")


def marks(case):
    return [] if case in QUICK else [pytest.mark.slow]


LAYERS_AND_POSTERIORS = [
    pytest.param(case, posterior, id=f"{case}-{name}", marks=marks(case))
    for case in KERNEL_LAYERS
    for name, posterior in POSTERIORS.items()
    if case == "dense"
    or name in ("input", "output", "additive", "correlated-input")
]

every_layer_and_posterior = pytest.mark.parametrize(
    "case, posterior", LAYERS_AND_POSTERIORS
)
every_kernel_layer = pytest.mark.parametrize(
    "case", [pytest.param(case, marks=marks(case)) for case in KERNEL_LAYERS]
)
every_posterior = pytest.mark.parametrize(
    "posterior", POSTERIORS.values(), ids=POSTERIORS
)


def build(case, **arguments):
    """A built layer with a bias, alpha that differs, and an example input."""
    cls, own, shape = KERNEL_LAYERS[case]
    arguments = {"num_examples": 10, "bias_initializer": "ones", **arguments}
    layer = cls(**own, **arguments)
    layer.build((None, *shape))
    layer.case = case
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


def twin(layer, bias=True):
    """The Keras layer with the same weights, or without its bias."""
    cls = layer.keras_class()
    config = cls.get_config(layer)
    if not bias:
        config["bias_axes" if "bias_axes" in config else "use_bias"] = None
    plain = cls.from_config(config)
    plain.build(layer.get_build_config()["input_shape"])
    plain.kernel.assign(layer.kernel)
    if bias and layer.bias is not None:
        plain.bias.assign(layer.bias)
    return plain


def outputs_of_each_weight(layer, inputs):
    """Outputs of the Keras layer with a kernel of one 1: `(weights, ...)`."""
    plain = twin(layer, bias=False)
    shape = tuple(layer.kernel.shape)
    found = []
    for index in range(np.prod(shape)):
        kernel = np.zeros(np.prod(shape), "float32")
        kernel[index] = 1
        plain.kernel.assign(kernel.reshape(shape))
        found.append(keras.ops.convert_to_numpy(plain(inputs)))
    return np.stack(found)


def units_of_weights(case, side):
    """Which input, or which output, each weight of the kernel belongs to.

    By what the Keras layer does with a weight: an input belongs to it if that
    reaches an output through it.
    """
    cls, own, shape = KERNEL_LAYERS[case]
    layer = cls(**own)
    layer.build((None, *shape))
    axes = UNITS.get(case, ((-1,), (-1,)))[side == "output"]
    if side == "output":
        found = outputs_of_each_weight(layer, np.ones((1, *shape), "float32"))
        last = range(-len(axes), 0)
        found = np.stack([np.moveaxis(x[0], axes, last) for x in found])
        sizes = found.shape[-len(axes) :]
        found = found.reshape(len(found), -1, np.prod(sizes)).any(axis=1)
    else:
        inputs = []
        for unit in np.ndindex(*[shape[axis] for axis in axes]):
            where = [slice(None)] * len(shape)
            for axis, index in zip(axes, unit, strict=True):
                where[axis] = index
            inputs.append(np.zeros(shape, "float32"))
            inputs[-1][tuple(where)] = 1
        found = outputs_of_each_weight(layer, np.stack(inputs))
        found = found.reshape(len(found), len(inputs), -1).any(axis=-1)
    assert np.all(found.sum(axis=-1) == 1)
    return found.argmax(axis=-1).reshape(tuple(layer.kernel.shape))


def alpha_of_weights(layer):
    """Alpha of each weight of the kernel, by the definition."""
    alpha = np.exp(keras.ops.convert_to_numpy(layer.log_alpha))
    if layer.granularity in ("input", "output"):
        return alpha.ravel()[units_of_weights(layer.case, layer.granularity)]
    return np.broadcast_to(alpha, tuple(layer.kernel.shape))


def moments(layer, inputs):
    """Mean and variance of the output, by two plain Keras layers."""
    mean = keras.ops.convert_to_numpy(twin(layer)(inputs))
    variance = twin(layer, bias=False)
    kernel = keras.ops.convert_to_numpy(layer.kernel)
    variance.kernel.assign(alpha_of_weights(layer) * kernel**2)
    return mean, keras.ops.convert_to_numpy(variance(inputs**2))


def draw(layer, inputs, count):
    """`count` noisy outputs for each input, `(count, *outputs)`."""
    batch = np.tile(inputs, (count,) + (1,) * (inputs.ndim - 1))
    outputs = keras.ops.convert_to_numpy(layer(batch, training=True))
    outputs = outputs.astype("float64")
    return outputs.reshape(count, len(inputs), *outputs.shape[1:])
