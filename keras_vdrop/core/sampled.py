"""Samples of a random weight, and the noise they are made of."""

import contextlib
import contextvars
import types
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from keras import ops

from keras_vdrop import backend
from keras_vdrop.core.dtypes import at_least_float32
from keras_vdrop.core.pruned import PrunableWeight

# Samples in the place of those to be drawn, by the identity of the weight.
_given: contextvars.ContextVar[Mapping] = contextvars.ContextVar(
    "keras_vdrop_given_samples", default=types.MappingProxyType({})
)


class SampledWeight(PrunableWeight):
    """The part of a random weight that draws."""

    def std(self) -> Any:
        """The deviation of each weight, with the sign of its mean."""
        return self.std_of_scale(self.scale(), self.mean())

    def scale(self) -> Any:
        """What `std` follows from, with the mean."""
        posterior = self.posterior
        value = self.axes.over_kernel(self.kept_noise(), self.granularity)
        return posterior.scale(value, self.mean())

    def std_of_scale(self, scale: Any, mean: Any) -> Any:
        """`std` for a value of `scale` and of the mean."""
        return self.posterior.std_of_scale(
            scale, ops.cast(mean, self.variable.dtype)
        )

    def noise(self) -> Any:
        """Standard normal noise that broadcasts over the kernel."""
        return self.posterior.noise(self.generator.normal, self.variable.dtype)

    def sample(self) -> Any:
        """One sample of the weights."""
        return ops.add(self.mean(), ops.multiply(self.std(), self.noise()))

    def sources(self) -> list:
        """The variables that a sample is made of."""
        found = [self.variable, self.mean_variable, self.pruned]
        return [variable for variable in found if variable is not None]

    def samples(self, states: Any) -> Any:
        """Samples of the weights on a first axis, one for each state."""

        def noise(state: Any) -> Any:
            with self.generator.hold(backend.draw_key(state)):
                return self.noise()

        noises = backend.for_each_state(noise, states)
        # Not by `ops.add`, which on tensorflow takes what looks like a bias for
        # one and drops an axis of size 1 (Keras 3.15, tensorflow/numpy.py).
        return self.mean() + self.std() * noises

    def held_sample(self) -> Any:
        """The same sample until the state of the seed changes, everywhere."""
        given = _given_for(id(self))
        if given is not None:
            return given
        key = backend.shared_key(ops.convert_to_tensor(self.seed_state))
        with self.generator.hold(key):
            return self.sample()

    def sample_of_rows(self, rows: Any) -> Any:
        """Rows of the table, each with noise of its own.

        A row that is asked for several times has other noise each time.

        Args:
            rows: Tensor of integers, indices of the first axis.
        """
        mean = ops.cast(
            ops.take(self.kept_mean(), rows, axis=0), self.variable.dtype
        )
        value = self.axes.of_rows(self.kept_noise(), self.granularity, rows)
        posterior = self.posterior
        std = posterior.std_of_scale(posterior.scale(value, mean), mean)
        shape = ops.shape(mean)
        if self.posterior.correlated:
            shape = (*shape[:-1], 1)
        noise = self.generator.normal(shape, self.variable.dtype)
        return ops.add(mean, ops.multiply(std, noise))

    def scales(self, inputs: Any, shape: Any = None) -> Any:
        """`xi ~ N(1, alpha)` for every input, or of a shape: type A noise."""
        std = self.posterior.scale(self.variable, self.mean_variable)
        if self.granularity == "input":
            std = self.axes.over_inputs(std, len(inputs.shape))
        dtype = at_least_float32(inputs.dtype)
        shape = ops.shape(inputs) if shape is None else shape
        noise = self.generator.normal(shape, dtype)
        return ops.cast(1.0 + std * noise, inputs.dtype)


@backend.traced_once
def _given_for(weight: int) -> Any:
    return _given.get().get(weight)


@contextlib.contextmanager
def given(samples: Mapping) -> Iterator[None]:
    """`held_sample` of these weights gives these samples, in this thread.

    Args:
        samples: A mapping from the identities of weights to samples.
    """
    token = _given.set({**_given.get(), **samples})
    try:
        yield
    finally:
        _given.reset(token)
