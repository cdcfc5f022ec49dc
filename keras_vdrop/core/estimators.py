"""How noise on the weights becomes noise on the outputs of a layer.

An estimator is a function of a layer and the arguments of its call. `local`
and `flipout` need the linear maps of the layer, `linear(inputs, kernel)`, and
are written once for all layers that have some: maps apply in turn, each with
noise of its own. `batch` and `example` put samples of the weights in the place
of the variables and run the layer's own call, so that they need nothing of the
layer.

Noise is drawn in float32 at least: half-precision normals are coarse and have
no tails.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import Protocol

import keras
from keras import ops

from keras_vdrop import backend
from keras_vdrop.core import pointwise
from keras_vdrop.core.dtypes import at_least_float32
from keras_vdrop.core.moments import moments
from keras_vdrop.core.moments import on_shards


class Layer(Protocol):
    """What an estimator may ask of a layer."""

    random_weights: Sequence[Any]
    variables: Sequence[Any]

    def plain_call(self, *args: Any, **kwargs: Any) -> Any:
        """The call of the Keras layer."""

    def linear_maps(self) -> list[tuple[Any, Callable]]:
        """The maps that apply in turn, each with its random weight."""

    def finish(self, outputs: Any) -> Any:
        """The bias and the activation."""

    def add_loss(self, loss: Any) -> None: ...


def local(layer: Layer, inputs: Any) -> Any:
    """Local reparameterization: noise on the inputs or on the outputs.

    Correlated noise (type A) is `linear(a * xi, theta)` with
    `xi ~ N(1, alpha)`; independent noise (type B) is
    `linear(a, theta) + sqrt(linear(a**2, variance)) * zeta` with
    `zeta ~ N(0, 1)`.
    """
    for weight, linear in layer.linear_maps():
        inputs = local_product(weight, linear, inputs)
    return layer.finish(inputs)


def local_product(weight: Any, linear: Callable, inputs: Any) -> Any:
    """`linear(inputs, w)` for random weights `w`, with local noise."""
    if weight.posterior.correlated:
        inputs = ops.multiply(inputs, weight.scales(inputs))
        return linear(inputs, weight.mean_variable)
    mean, variance = moments(linear, inputs, weight)
    dtype = keras.backend.standardize_dtype(mean.dtype)
    noise = weight.generator.normal(ops.shape(mean), at_least_float32(dtype))
    noise = ops.cast(noise, variance.dtype)
    # In this order XLA runs the gradients of convolutions on a CPU with less
    # waiting: a step takes up to 4% less time (jax 0.10).
    return ops.cast(pointwise.deviation(variance, noise), dtype) + mean


def flipout(layer: Layer, inputs: Any) -> Any:
    """One sample of the weights, its noise with other signs in each example.

    `linear(a, theta) + r * linear(a * s, std * noise)` with random signs `s`
    for each example and input and `r` for each example and output (Wen et al.
    2018). Correlated noise has no signs of outputs, which share their noise.
    """
    for weight, linear in layer.linear_maps():
        inputs = _flipout_map(linear, inputs, weight)
    return layer.finish(inputs)


def _flipout_map(linear: Callable, inputs: Any, weight: Any) -> Any:
    dtype = keras.backend.standardize_dtype(inputs.dtype)
    noise = weight.noise()
    flipped = ops.multiply(inputs, _signs(weight, inputs, "input"))

    def products(examples: Any, shared: Any) -> tuple[Any, Any]:
        kernel, scale, noise = shared
        std = weight.std_of_scale(scale, kernel)
        sample = ops.cast(ops.multiply(std, noise), dtype)
        return linear(examples[0], kernel), linear(examples[1], sample)

    kernel = backend.value_of(weight.kept_mean())
    mean, deviation = on_shards(
        products,
        weight.axes,
        (inputs, flipped),
        (kernel, weight.scale(), noise),
    )
    if not weight.posterior.correlated:
        signs = _signs(weight, deviation, "output")
        deviation = ops.multiply(deviation, signs)
    return mean + deviation


def _signs(weight: Any, tensor: Any, side: str) -> Any:
    shape = weight.axes.shape_by_example(ops.shape(tensor), side)
    noise = weight.generator.normal(shape, "float32")
    return ops.cast(ops.where(noise < 0, -1.0, 1.0), tensor.dtype)


def batch(layer: Layer, *args: Any, **kwargs: Any) -> Any:
    """One sample of the weights for the whole minibatch."""
    samples = [weight.sample() for weight in layer.random_weights]
    return with_samples(layer, samples, *args, **kwargs)


def with_samples(
    layer: Layer, samples: Sequence[Any], *args: Any, **kwargs: Any
) -> Any:
    """The layer's own call, with samples in the place of its weights."""
    state, values = _state(layer, samples)
    outputs, values, losses = _substitute(
        state, values, lambda: layer.plain_call(*args, **kwargs)
    )
    for variable, value in values:
        variable.assign(value)
    for loss in losses:
        layer.add_loss(loss)
    return outputs


def example(layer: Layer, inputs: Any, **kwargs: Any) -> Any:
    """One sample of the weights for each example, one example at a time.

    Noise is drawn again in the backward pass instead of kept, so that there
    is never more than one sample of the weights at a time. A layer without a
    linear map runs its own call for each example: its state is the same for
    all of them, and stays as it is.
    """
    inputs = ops.convert_to_tensor(inputs, sparse=False)
    if inputs.shape[0] == 0:
        return layer.plain_call(inputs, **kwargs)
    maps = layer.linear_maps()
    if not maps:
        return _each_call(layer, inputs, **kwargs)
    dtype = keras.backend.standardize_dtype(inputs.dtype)

    def run(row_and_key: tuple[Any, Any], pairs: list) -> Any:
        row, key = row_and_key
        pairs = [x for pair in pairs for x in pair]

        # Arguments, because tensorflow's `remat` gives no gradient to tensors
        # that a function closes over.
        def with_key(row: Any, *pairs: Any) -> Any:
            outputs = row[None]
            for number, (weight, linear) in enumerate(maps):
                mean, std = pairs[2 * number : 2 * number + 2]
                sample = _held_sample(weight, mean, std, key, number)
                outputs = linear(outputs, ops.cast(sample, dtype))
            return outputs[0]

        return keras.remat(with_key)(row, *pairs)

    weights = [weight for weight, _ in maps]
    return layer.finish(_for_each(run, inputs, weights))


def _for_each(
    function: Callable, inputs: Any, weights: Sequence[Any], *shared: Any
) -> Any:
    """`function((row, key), pairs, *shared)` for each example.

    Each device loops over its own. Then the gradients are summed over devices,
    of the pairs of mean and standard deviation of the weights and of `shared`.
    """
    pairs = [[weight.mean(), weight.std()] for weight in weights]
    keys = weights[0].generator.split(ops.shape(inputs)[0])
    return backend.on_shards(
        lambda rows, shared: backend.map_examples(
            lambda row: function(row, *shared), rows
        ),
        (inputs, keys),
        (pairs, *shared),
    )


def _held_sample(
    weight: Any, mean: Any, std: Any, key: Any, number: int
) -> Any:
    """A sample of the weight with this number that follows from a key."""
    with weight.generator.hold(backend.fold_key(key, number)):
        return mean + std * weight.noise()


def _each_call(layer: Layer, inputs: Any, **kwargs: Any) -> Any:
    weights = layer.random_weights
    state, values = _state(layer, [])

    def run(row_and_key: tuple[Any, Any], pairs: list, values: list) -> Any:
        row, key = row_and_key
        samples = [
            _held_sample(weight, mean, std, key, number)
            for number, (weight, (mean, std)) in enumerate(
                zip(weights, pairs, strict=True)
            )
        ]
        outputs, _, losses = _substitute(
            state,
            [*samples, *values],
            lambda: layer.plain_call(row[None], **kwargs),
        )
        return outputs[0], [ops.mean(loss) for loss in losses]

    outputs, losses = _for_each(run, inputs, weights, values)
    for loss in losses:
        layer.add_loss(ops.mean(loss))
    return outputs


def _state(layer: Layer, samples: Sequence[Any]) -> tuple[list, list]:
    """The variables of a layer, the random ones first, and their values."""
    weights = layer.random_weights
    random = [weight.mean_variable for weight in weights]
    hidden = {id(v) for weight in weights for v in weight.variables}
    hidden |= {id(variable) for variable in random}
    others = [v for v in layer.variables if id(v) not in hidden]
    values = [*samples, *(ops.convert_to_tensor(v) for v in others)]
    return [*random, *others], values


def _substitute(
    state: list, values: Sequence[Any], call: Callable
) -> tuple[Any, list, list]:
    """Runs a call with other values of some variables.

    Returns its outputs, pairs of variables and values that it has assigned,
    and the losses that it has added.
    """
    mapping = list(zip(state, values, strict=True))
    with keras.StatelessScope(mapping, collect_losses=True) as scope:
        before = [scope.get_current_value(variable) for variable in state]
        outputs = call()
    changed = [
        (variable, scope.get_current_value(variable))
        for variable, value in zip(state, before, strict=True)
        if scope.get_current_value(variable) is not value
    ]
    # Of another identity, by which the layer inside knows the first.
    return outputs, changed, [ops.multiply(x, 1.0) for x in scope.losses]


ESTIMATORS: dict[str, Callable] = {
    "local": local,
    "batch": batch,
    "example": example,
    "flipout": flipout,
}
NEED_LINEAR = ("local", "flipout")
