"""What the variational recurrent cells share.

A kernel of a recurrent layer is used at every step, so its noise is drawn once
for a sequence (Gal and Ghahramani 2016, Fortunato et al. 2017). Correlated
noise is then a factor for each example, on the inputs and on the state: an
exact sample of the weights for each example. Independent noise has no such
form, so the weights are sampled for the minibatch.

A cell is its axes and, where the state reaches the outputs by more than the
recurrent kernel, its `scaled_call`.
"""

import contextlib
import contextvars
import types
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from keras import ops

from keras_vdrop.core import estimators
from keras_vdrop.core import validation
from keras_vdrop.layers.base import VariationalLayer

# By the identity of a cell: the noise of the sequence that it is at.
_drawn: contextvars.ContextVar[Mapping[Any, Any]] = contextvars.ContextVar(
    "keras_vdrop_sequence_noise", default=types.MappingProxyType({})
)
# The cells that are at a step now.
_stepping: contextvars.ContextVar[frozenset[int]] = contextvars.ContextVar(
    "keras_vdrop_stepping", default=frozenset()
)
# Whether the layer around a cell trains, where it has said so.
_training: contextvars.ContextVar[Any] = contextvars.ContextVar(
    "keras_vdrop_sequence_training", default=None
)


class VariationalCell(VariationalLayer):
    """Mixin: a cell with a kernel and a recurrent kernel."""

    axes: Any = {
        "kernel": "n i, i o -> n o",
        "recurrent_kernel": "n i, i o -> n o",
    }
    estimators = ("local", "batch")

    def check_noise(self) -> None:
        validation.check_choice("estimator", self.estimator, self.estimators)
        if (self.noise, self.estimator) == ("independent", "local"):
            raise validation.invalid(
                "estimator",
                "'batch' with noise='independent' in a recurrent layer",
                self.estimator,
                "The noise of the weights is the same at all steps, which "
                "noise on the outputs of one step cannot be. "
                "`noise='correlated'` has noise of its own for each example.",
            )

    # Keras asks for dropout masks before the loop over the steps, in which
    # nothing may be drawn on jax, and resets them behind it (3.15,
    # layers/rnn/rnn.py). So do `RNN` and `StackedRNNCells` for their cells.
    def get_dropout_mask(self: Any, step_input: Any) -> Any:
        self._begin("kernel", step_input)
        return super().get_dropout_mask(step_input)  # type: ignore[misc]

    def get_recurrent_dropout_mask(self: Any, step_input: Any) -> Any:
        self._begin("recurrent_kernel", step_input)
        mask = super().get_recurrent_dropout_mask  # type: ignore[misc]
        return mask(step_input)

    def reset_dropout_mask(self: Any) -> None:
        self.forget_sequence()
        super().reset_dropout_mask()  # type: ignore[misc]

    def forget_sequence(self) -> None:
        """The next sequence has noise of its own."""
        _drawn.set({k: v for k, v in _drawn.get().items() if k != id(self)})

    def sequence_noise(self) -> dict[str, Any]:
        """What was drawn for this sequence, by the name of the kernel."""
        return _drawn.get().get(id(self), {})

    def _begin(self: Any, name: str, step_input: Any) -> None:
        """Draws the noise of a sequence, unless it has begun.

        What a call that failed has left is drawn anew.
        """
        if id(self) in _stepping.get():
            return
        training = _training.get()
        if training is None:
            training = self._get_call_context().get_value("training")
        drawn = dict(self.sequence_noise())
        drawn.pop(name, None)
        if self.is_noisy(training):
            drawn[name] = self._draw(name, step_input)
        _drawn.set({**_drawn.get(), id(self): drawn})

    def _draw(self, name: str, step_input: Any) -> Any:
        weight = getattr(self, f"{name}_noise")
        if self.estimator == "batch":
            return weight.sample()
        shape = ops.shape(step_input)
        return weight.scales(
            step_input, weight.axes.shape_by_example(shape, "input")
        )

    def call(  # type: ignore[override]
        self: Any, inputs: Any, states: Any, training: bool = False
    ) -> Any:
        with self._step():
            if not self.is_noisy(training):
                return self.plain_call(inputs, states, training=training)
            drawn = self.sequence_noise() or {
                "kernel": self._draw("kernel", inputs),
                "recurrent_kernel": self._draw(
                    "recurrent_kernel", hidden_state(states)
                ),
            }
            if self.estimator == "batch":
                samples = [drawn[name] for name in self.axes_by_name()]
                return estimators.with_samples(
                    self, samples, inputs, states, training=training
                )
            return self.scaled_call(
                inputs * drawn["kernel"],
                states,
                drawn["recurrent_kernel"],
                training,
            )

    def scaled_call(
        self: Any, inputs: Any, states: Any, scales: Any, training: bool
    ) -> Any:
        """A step in which scales multiply the state before the products.

        Here the state reaches the outputs through the recurrent kernel alone.
        """
        state = hidden_state(states) * scales
        if isinstance(states, (list, tuple)):
            state = [state, *states[1:]]
        return self.plain_call(inputs, state, training=training)

    @contextlib.contextmanager
    def _step(self) -> Iterator[None]:
        token = _stepping.set(_stepping.get() | {id(self)})
        try:
            yield
        finally:
            _stepping.reset(token)


def hidden_state(states: Any) -> Any:
    """The state that the recurrent kernel reads: the first of several."""
    return states[0] if isinstance(states, (list, tuple)) else states


@contextlib.contextmanager
def trains(training: Any) -> Iterator[None]:
    """Cells asked for masks in here know whether their layer trains."""
    token = _training.set(bool(training))
    try:
        yield
    finally:
        _training.reset(token)
