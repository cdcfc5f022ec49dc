"""Which axes of a kernel are inputs, outputs and groups.

A linear layer is described by one equation of named axes, as in einops:

    "... i, i o -> ... o"                           Dense
    "n ... (g i), h w i (g o) -> n ... (g o)"       Conv2D with groups
    "n ... c, h w c m -> n ... (c m)"               DepthwiseConv2D

The three parts are the inputs, the kernel and the outputs. Axes in parentheses
are one axis of the array, the first of them the slowest; `...` stands for any
number of axes. An axis that the kernel does not have is a position: weights
are the same for all its indices. The first axis of the inputs is the batch.

An axis of the kernel alone, such as a window, has noise of its own at each
index where all the weights of an input share their noise. In

    "n ... i, ... i o -> n ... o"                   ConvLSTM2D

the axes of the window are `...`, and noise is shared over it too: a factor on
a channel of the inputs is then a sample of the weights.

This is the only module that knows where the axes of a kernel are.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_vdrop.core.validation import invalid

GRANULARITIES = ("layer", "input", "output", "weight")
ELLIPSIS = ("...",)

# An axis of an array: the names that it consists of.
Axis = tuple[str, ...]


class Axes:
    """The axes of a linear map, with their sizes.

    Args:
        equation: String, `"inputs, kernel -> outputs"`.
        kernel_shape: Shape of the kernel.
        **sizes: The sizes of axes that the shape of the kernel does not tell,
            such as `g=2`.
    """

    def __init__(
        self, equation: str, kernel_shape: Sequence[int], **sizes: int
    ):
        self.equation = equation
        self.kernel_shape = tuple(kernel_shape)
        self.inputs, self.kernel, self.outputs = parse(equation)
        self.kernel = _named(self.kernel, len(self.kernel_shape))
        self.sizes = _sizes(self.kernel, self.kernel_shape, sizes)

    def shape(self, granularity: str) -> tuple[int, ...]:
        """The shape of one alpha for each input, output, weight or layer."""
        if granularity == "layer":
            return ()
        if granularity == "weight":
            return self.kernel_shape
        return tuple(map(self._size, self._units(granularity)))

    def select(self, marks: Sequence[Any], granularity: str) -> tuple[Any, ...]:
        """Of one mark for each axis of the kernel those of a granularity.

        An axis that is no axis of the kernel has `None`.
        """
        if granularity == "layer":
            return ()
        if granularity == "weight":
            return tuple(marks)
        known = dict(zip(self.kernel, marks, strict=True))
        return tuple(known.get(axis) for axis in self._units(granularity))

    def over_kernel(self, values: Any, granularity: str) -> Any:
        """Shapes values of a granularity to broadcast against the kernel."""
        if granularity in ("layer", "weight"):
            return values
        names = _names(self._units(granularity))
        values = ops.reshape(values, [self.sizes[name] for name in names])
        order = [name for name in _names(self.kernel) if name in names]
        values = ops.transpose(values, [names.index(name) for name in order])
        return self._merge(values, set(order))

    def of_rows(self, values: Any, granularity: str, rows: Any) -> Any:
        """Values of a granularity for rows of the kernel, to broadcast.

        Args:
            values: Values of the shape of the granularity.
            granularity: What has a value of its own.
            rows: Integers, indices of the first axis of the kernel.
        """
        values = self.over_kernel(values, granularity)
        if not len(values.shape) or values.shape[0] == 1:
            return values
        return ops.take(values, rows, axis=0)

    def over_inputs(self, values: Any, rank: int) -> Any:
        """Shapes one value for each input to broadcast against the inputs."""
        return self._over(values, self.inputs, rank)

    def over_outputs(self, values: Any, rank: int) -> Any:
        """Shapes one value for each output to broadcast against outputs."""
        return self._over(values, self.outputs, rank)

    def rows(self) -> tuple[int, ...]:
        """The shape of noise that all the weights of an input share.

        One number for each weight by which an input is multiplied, in
        whatever output: `spread_rows` gives it to the kernel.
        """
        return tuple(self.sizes[name] for name in self._row_names())

    def spread_rows(self, values: Any) -> Any:
        """Shapes values of the shape `rows` to broadcast over the kernel."""
        return self._merge(values, set(self._row_names()))

    def shape_by_example(
        self, shape: Sequence[Any], side: str
    ) -> tuple[Any, ...]:
        """One number for each example and each input, or each output.

        Args:
            shape: The shape of the inputs, or of the outputs.
            side: `"input"` or `"output"`.
        """
        pattern = _expand(self._side(side), len(shape))
        return tuple(
            size if number == 0 or self._is_unit(axis) else 1
            for number, (axis, size) in enumerate(
                zip(pattern, shape, strict=True)
            )
        )

    def keeps_examples(self) -> bool:
        """Whether the first axis of the outputs is that of the inputs."""
        first = self.inputs[:1]
        return first == self.outputs[:1] and not self._is_unit(first[0])

    def input_count(self) -> int:
        """How many inputs the kernel has."""
        return math.prod(self.shape("input"))

    def _side(self, side: str) -> list[Axis]:
        return self.inputs if side == "input" else self.outputs

    def _units(self, side: str) -> list[Axis]:
        return [axis for axis in self._side(side) if self._is_unit(axis)]

    def _is_unit(self, axis: Axis) -> bool:
        return axis[0] in self.sizes

    def _size(self, axis: Axis) -> int:
        # A list, because the compiler of torch takes no generator here.
        return math.prod([self.sizes[name] for name in axis])

    def _row_names(self) -> list[str]:
        inputs, outputs = _names(self.inputs), _names(self.outputs)
        return [
            name
            for name in _names(self.kernel)
            if name in inputs
            or (name not in outputs and not name.startswith(ELLIPSIS))
        ]

    def _over(self, values: Any, pattern: list[Axis], rank: int) -> Any:
        shape = [
            self._size(axis) if self._is_unit(axis) else 1
            for axis in _expand(pattern, rank)
        ]
        while shape and shape[0] == 1:
            del shape[0]
        if tuple(values.shape) == tuple(shape):
            return values
        return ops.reshape(values, shape)

    def _merge(self, values: Any, names: set[str]) -> Any:
        """From named axes in the kernel's order to the kernel's own axes."""
        apart, spread, merged = [], [], []
        for axis in self.kernel:
            some = any(name in names for name in axis)
            for name in axis:
                apart.append(self.sizes[name] if name in names else 1)
                # Within one axis of the array every name has its full size.
                spread.append(self.sizes[name] if some else 1)
            merged.append(self._size(axis) if some else 1)
        values = ops.reshape(values, apart)
        if apart != spread:
            values = ops.broadcast_to(values, spread)
        return values if merged == spread else ops.reshape(values, merged)


def parse(equation: str) -> tuple[list[Axis], list[Axis], list[Axis]]:
    """The axes of inputs, kernel and outputs, refused if they are no map."""
    match = re.fullmatch(r"([^,>]*),([^,>]*)->([^,>]*)", equation)
    if match is None:
        raise invalid(
            "equation", "'inputs, kernel -> outputs' of named axes", equation
        )
    inputs, kernel, outputs = (
        [
            tuple((inside or name).split())
            for inside, name in re.findall(r"\(([^)]*)\)|(\S+)", part)
        ]
        for part in match.groups()
    )
    for part in (inputs, kernel, outputs):
        names = _names(part)
        if len(names) > len(set(names)):
            raise invalid(
                "equation",
                "one with each index once in the inputs, in the kernel and in "
                "the outputs",
                equation,
                "Take a diagonal in a layer of its own.",
            )
    known = {*_names(kernel), *_names(outputs)}
    summed = [name for name in _names(inputs) if name not in known]
    if summed:
        raise invalid(
            "equation",
            "one in which each index of the inputs is one of the kernel or of "
            "the outputs too",
            equation,
            f"The index '{summed[0]}' is summed over before the weights "
            "apply. Sum over it in a layer of its own.",
        )
    return inputs, kernel, outputs


def _sizes(
    kernel: list[Axis], shape: tuple[int, ...], known: dict[str, int]
) -> dict[str, int]:
    if len(kernel) != len(shape):
        raise invalid(
            "equation",
            f"a kernel of {len(shape)} axes",
            " ".join(_names(kernel)),
        )
    sizes = dict(known)
    for axis, size in zip(kernel, shape, strict=True):
        unknown = [name for name in axis if name not in sizes]
        if len(unknown) == 1:
            rest = math.prod(sizes[name] for name in axis if name in sizes)
            sizes[unknown[0]] = size // rest
        if unknown[1:] or math.prod(sizes[name] for name in axis) != size:
            raise invalid(
                "equation", f"sizes of {axis} that make up {size}", known
            )
    return sizes


def _named(kernel: list[Axis], rank: int) -> list[Axis]:
    """The axes of a kernel, with names for those that `...` stands for."""
    return [
        (f"...{number}",) if axis == ELLIPSIS else axis
        for number, axis in enumerate(_expand(kernel, rank))
    ]


def _names(pattern: list[Axis]) -> list[str]:
    return [name for axis in pattern for name in axis if axis != ELLIPSIS]


def _expand(pattern: list[Axis], rank: int) -> list[Axis]:
    """The axes of an array of a rank, with the positions of `...`."""
    if ELLIPSIS not in pattern:
        return pattern
    at = pattern.index(ELLIPSIS)
    return [
        *pattern[:at],
        *[ELLIPSIS] * (rank - len(pattern) + 1),
        *pattern[at + 1 :],
    ]
