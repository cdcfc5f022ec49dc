"""Axes by name, against indices counted by hand."""

import keras
import numpy as np
import pytest

from keras_vdrop.core.axes import Axes

DENSE = Axes("... i, i o -> ... o", (3, 4))
CONV = Axes("n ... (g i), h w i (g o) -> n ... (g o)", (5, 6, 2, 8), g=4)
FIRST = Axes("n (g i) ..., h w i (g o) -> n (g o) ...", (5, 6, 2, 8), g=4)
DEPTHWISE = Axes("n ... c, h w c m -> n ... (c m)", (5, 6, 3, 2))
EINSUM = Axes("a b c, c d e -> a b d e", (3, 4, 5))
TRANSPOSED = Axes("n ... i, h w o i -> n ... o", (5, 6, 4, 3))
SHARED = Axes("a b c, b c d -> a d b", (2, 3, 4))
SCALE = Axes("a i b, i -> a i b", (3,))

to_numpy = keras.ops.convert_to_numpy


@pytest.mark.parametrize(
    "axes, inputs, outputs",
    [
        (DENSE, (3,), (4,)),
        (CONV, (8,), (8,)),
        (FIRST, (8,), (8,)),
        (DEPTHWISE, (3,), (6,)),
        (EINSUM, (3,), (4, 5)),
        (TRANSPOSED, (3,), (4,)),
        (SHARED, (2, 3), (4, 2)),
        (SCALE, (3,), (3,)),
    ],
)
def test_shapes(axes, inputs, outputs):
    assert axes.shape("layer") == ()
    assert axes.shape("input") == inputs
    assert axes.shape("output") == outputs
    assert axes.shape("weight") == axes.kernel_shape
    assert axes.input_count() == np.prod(inputs)


def over_kernel(axes, granularity):
    """The number of the unit of each weight."""
    shape = axes.shape(granularity)
    values = np.arange(np.prod(shape)).reshape(shape)
    found = to_numpy(axes.over_kernel(values, granularity))
    return np.broadcast_to(found, axes.kernel_shape)


def index(axes, number):
    """Along one axis of the kernel."""
    return np.indices(axes.kernel_shape)[number]


def test_units_of_the_weights():
    i, o = np.indices((3, 4))
    np.testing.assert_array_equal(over_kernel(DENSE, "input"), i)
    np.testing.assert_array_equal(over_kernel(DENSE, "output"), o)
    for axes in (CONV, FIRST):
        _, _, i, o = np.indices(axes.kernel_shape)
        np.testing.assert_array_equal(
            over_kernel(axes, "input"), o // 2 * 2 + i
        )
        np.testing.assert_array_equal(over_kernel(axes, "output"), o)
    _, _, c, m = np.indices(DEPTHWISE.kernel_shape)
    np.testing.assert_array_equal(over_kernel(DEPTHWISE, "input"), c)
    np.testing.assert_array_equal(over_kernel(DEPTHWISE, "output"), 2 * c + m)
    c, d, e = np.indices((3, 4, 5))
    np.testing.assert_array_equal(over_kernel(EINSUM, "input"), c)
    np.testing.assert_array_equal(over_kernel(EINSUM, "output"), 5 * d + e)
    _, _, o, i = np.indices(TRANSPOSED.kernel_shape)
    np.testing.assert_array_equal(over_kernel(TRANSPOSED, "input"), i)
    np.testing.assert_array_equal(over_kernel(TRANSPOSED, "output"), o)
    b, c, d = np.indices((2, 3, 4))
    np.testing.assert_array_equal(over_kernel(SHARED, "input"), 3 * b + c)
    # The outputs have d before b.
    np.testing.assert_array_equal(over_kernel(SHARED, "output"), 2 * d + b)


@pytest.mark.parametrize(
    "axes, rank, inputs, outputs",
    [
        (DENSE, 2, (3,), (4,)),
        (DENSE, 5, (3,), (4,)),
        (CONV, 4, (8,), (8,)),
        (FIRST, 4, (8, 1, 1), (8, 1, 1)),
        (EINSUM, 3, (3,), None),
        (EINSUM, 4, None, (4, 5)),
        (SHARED, 3, (2, 3), (4, 2)),
        (SCALE, 3, (3, 1), (3, 1)),
    ],
)
def test_over_inputs_and_outputs(axes, rank, inputs, outputs):
    for shape, over, granularity in (
        (inputs, axes.over_inputs, "input"),
        (outputs, axes.over_outputs, "output"),
    ):
        if shape is not None:
            values = np.ones(axes.shape(granularity))
            assert tuple(over(values, rank).shape) == shape


def test_rows():
    """Noise is shared by the weights of one input, and by no others."""
    for axes, numbers in (
        (DENSE, lambda i, o: i),
        (CONV, lambda h, w, i, o: ((h * 6 + w) * 2 + i) * 4 + o // 2),
        (DEPTHWISE, lambda h, w, c, m: (h * 6 + w) * 3 + c),
        (EINSUM, lambda c, d, e: c),
        (TRANSPOSED, lambda h, w, o, i: (h * 6 + w) * 3 + i),
        (SHARED, lambda b, c, d: b * 3 + c),
    ):
        shape = axes.rows()
        values = np.arange(np.prod(shape)).reshape(shape)
        found = to_numpy(axes.spread_rows(values))
        found = np.broadcast_to(found, axes.kernel_shape)
        expected = numbers(*np.indices(axes.kernel_shape))
        np.testing.assert_array_equal(found, expected)


def test_signs():
    assert DENSE.shape_by_example((7, 2, 3), "input") == (7, 1, 3)
    assert FIRST.shape_by_example((7, 8, 9, 9), "output") == (7, 8, 1, 1)
    assert EINSUM.shape_by_example((7, 2, 4, 5), "output") == (7, 1, 4, 5)


@pytest.mark.parametrize(
    "equation, shape, fix",
    [
        ("a b c, c d -> a d", (3, 4), "index 'b' is summed over"),
        ("i, i o", (3, 4), "inputs, kernel -> outputs"),
        ("... i, i o -> ... o", (3, 4, 5), "a kernel of 3 axes"),
        ("... (g i), i (g o) -> ... (g o)", (3, 4), "that make up 4"),
    ],
)
def test_bad_equations_are_refused(equation, shape, fix):
    with pytest.raises(ValueError, match=f"argument `equation`.*{fix}"):
        Axes(equation, shape)


def test_noise_that_is_shared_over_the_window():
    axes = Axes("n ... i, ... i o -> n ... o", (2, 3, 4, 5))
    assert axes.rows() == (4,)
    spread = axes.spread_rows(keras.ops.arange(4))
    assert tuple(spread.shape) == (1, 1, 4, 1)
    # Alpha is where it is without that.
    assert axes.shape("input") == (4,)
    assert axes.shape("output") == (5,)
    assert axes.shape("weight") == (2, 3, 4, 5)
    assert axes.shape_by_example((7, 8, 9, 4), "input") == (7, 1, 1, 4)
    first = Axes("n i ..., ... i o -> n o ...", (2, 3, 4, 5))
    assert first.shape_by_example((7, 4, 8, 9), "input") == (7, 4, 1, 1)
    own = Axes("n ... i, h w i o -> n ... o", (2, 3, 4, 5))
    assert own.rows() == (2, 3, 4)
