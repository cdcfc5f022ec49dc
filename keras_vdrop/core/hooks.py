"""What Keras asks of the variable of the noise: where it begins, its loss, its
limit, and whether training may begin.

`weight` is the `RandomWeight` that the variable belongs to.
"""

import math
import types
from typing import Any

import keras
from keras import ops

from keras_vdrop import backend


def noise_variable(weight: Any, dtype: str) -> Any:
    """A new variable of the noise of a `RandomWeight`."""
    posterior = weight.posterior
    arguments = {
        "name": posterior.variable_name,
        "shape": posterior.shape,
        "initializer": InitialNoise(weight),
        "dtype": dtype,
        "trainable": weight.adaptive,
        "autocast": False,
    }
    layout = backend.layout_like(
        weight.mean_variable,
        f"{weight.path}/{posterior.variable_name}",
        lambda axes: weight.axes.select(axes, weight.granularity),
    )
    if layout is None:
        variable = weight.add_weight(**arguments)
    else:
        # `add_weight` takes no layout (3.15, layers/layer.py).
        with keras.name_scope(weight.name, caller=weight):
            variable = keras.Variable(layout=layout, **arguments)
    variable.regularizer = KLLoss(weight)
    variable.constraint = None if weight.limit is None else Limit(weight)
    return variable


# Instances and not methods or functions: Keras keeps weak references to
# initializers (3.15, backend/jax/core.py), and before 3.15 it takes no others.
class InitialNoise(keras.initializers.Initializer):
    def __init__(self, weight: Any):
        self.weight = weight

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        rate = self.weight.rate
        log_alpha = ops.full(shape, math.log(rate / (1 - rate)), dtype)
        return self.weight.posterior.from_log_alpha(
            log_alpha, self.weight.mean_variable
        )


class KLLoss(keras.regularizers.Regularizer):
    def __init__(self, weight: Any):
        self.weight = weight

    def __call__(self, x: Any) -> Any:
        return self.weight.kl_loss()


class NumExamplesCheck(keras.metrics.Metric):
    """Refuses `fit` and `evaluate` without the number of examples.

    Keras resets the metrics of all layers before each epoch and each
    evaluation. On jax that is the last moment before it moves the variables
    out of the model (3.15, backend/jax/trainer.py): an error in the compiled
    step would lose them.
    """

    def __init__(self, weight: Any):
        super().__init__(name="num_examples_check")
        # A layer as an attribute would be saved as a part of this.
        self._hidden = types.SimpleNamespace(weight=weight)

    def reset_state(self) -> None:
        weight = self._hidden.weight
        learned = weight.adaptive and weight.trainable
        if learned and weight.num_examples is None:
            raise unknown_num_examples(weight)

    def result(self) -> dict:
        return {}  # Nothing for the logs.


def unknown_num_examples(weight: Any) -> ValueError:
    return ValueError(
        f"The loss of layer '{weight.owner}' is not known before the "
        "number of training examples is, by which its KL is divided. "
        "Add this line before `fit` or `evaluate`:\n\n"
        "    keras_vdrop.set_num_examples(model, len(x_train))\n\n"
        "or give `fit` the callback `keras_vdrop.callbacks.CountExamples()`, "
        "or fix the dropout rate with `adaptive=False`."
    )


class Limit(keras.constraints.Constraint):
    def __init__(self, weight: Any):
        self.weight = weight

    def __call__(self, w: Any) -> Any:
        weight = self.weight
        return weight.posterior.constrained(w, weight.mean_variable)


class KeptAtZero(keras.constraints.Constraint):
    """Pruned weights at zero, after another constraint of the mean.

    Args:
        pruned: Boolean tensor, and no variable: the optimizer has only those
            that it changes.
        before: The other constraint, or `None`.
    """

    def __init__(self, pruned: Any, before: Any):
        self.pruned = pruned
        self.before = before

    def __call__(self, w: Any) -> Any:
        w = w if self.before is None else self.before(w)
        return zero_where(self.pruned, w)


def zero_where(pruned: Any, means: Any) -> Any:
    """Means of the weights, or zero where weights were pruned."""
    means = ops.convert_to_tensor(means)
    return ops.where(pruned, ops.zeros_like(means), means)
