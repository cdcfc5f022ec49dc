"""Integers times a power of two, against fractions."""

import fractions

import numpy as np
import pytest

from keras_vdrop.coding import grid


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("exponent", [-20, -7, 0, 4])
def test_multiples_of_a_power_of_two(dtype, exponent):
    integers = np.array([[-300, 7, 0], [1, 0, 1000]])
    if dtype == "float16" and exponent == -20:
        integers = np.array([[0, 3, -5], [1, 0, 9]])
    if dtype == "float16" and exponent == 4:
        integers = integers // 2 * 2 + 1
    array = (integers * 2.0**exponent).astype(dtype)
    found = grid.find_exponent(array)
    # Exactly, and the largest: some of the integers are odd.
    assert found == exponent
    np.testing.assert_array_equal(grid.to_integers(array, found), integers)
    again = grid.from_integers(integers, found, dtype)
    assert again.dtype == array.dtype
    np.testing.assert_array_equal(again, array)


def test_the_step_is_the_greatest_common_one():
    generator = np.random.default_rng(0)
    for _ in range(50):
        scale = 2.0 ** generator.integers(-30, 30)
        array = (generator.integers(-99, 99, 7) * scale).astype("float32")
        if not array.any():
            continue
        ratios = [fractions.Fraction(float(x)) for x in array if x]
        found = fractions.Fraction(2) ** grid.find_exponent(array)
        numbers = [ratio / found for ratio in ratios]
        assert all(x.denominator == 1 for x in numbers)
        assert any(x.numerator % 2 for x in numbers)


@pytest.mark.parametrize(
    "values",
    [[1.0, np.nan], [np.inf], [-0.0, 1.0], [1.0, 2.0**-17], [np.pi, 1.0]],
    ids=["nan", "inf", "-0", "span", "pi"],
)
def test_no_grid(values):
    assert grid.find_exponent(np.array(values, "float32")) is None


def test_integers_and_nothing():
    assert grid.find_exponent(np.array([0, 6, -2], "int8")) == 1
    assert grid.find_exponent(np.zeros((2, 0), "float32")) == 0
    assert grid.find_exponent(np.array([True, False])) == 0
    assert grid.find_exponent(np.array([2**60 + 1])) is None
    assert grid.find_exponent(np.array(["a"])) is None


def test_rounded():
    found = grid.rounded(np.array([-0.1, 0.3, 0.74, -1.3]), 0.5)
    np.testing.assert_array_equal(found, [0.0, 0.5, 0.5, -1.5])
    assert not np.signbit(found[0])
    assert grid.nearest_step(0.36) == 0.5
    assert grid.nearest_step(0.35) == 0.25
