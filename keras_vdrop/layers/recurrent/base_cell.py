"""What the variational recurrent cells and layers share.

A kernel of a recurrent layer is used at every step, so its noise is drawn once
for a sequence (Gal and Ghahramani 2016, Fortunato et al. 2017). Correlated
noise is then a factor for each example, on the inputs and on the state: an
exact sample of the weights for each example. Independent noise has no such
form, so the weights are sampled for the minibatch.
"""

import contextvars
import types
from collections.abc import Mapping
from typing import Any

from keras_vdrop.core import estimators
from keras_vdrop.core import validation
from keras_vdrop.core.arguments import NoiseArguments
from keras_vdrop.core.random_weight import RandomWeight
from keras_vdrop.layers.base import VariationalLayer

# The noise of the sequence that each cell is at, by the identity of the cell.
_drawn: contextvars.ContextVar[Mapping[Any, Any]] = contextvars.ContextVar(
    "keras_vdrop_sequence_noise", default=types.MappingProxyType({})
)


class VariationalCell(VariationalLayer):
    """Mixin: a cell with a kernel and a recurrent kernel."""

    axes = {
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
    # layers/rnn/rnn.py).
    def get_dropout_mask(self: Any, step_input: Any) -> Any:
        self._draw_once("kernel", step_input)
        return super().get_dropout_mask(step_input)  # type: ignore[misc]

    def get_recurrent_dropout_mask(self: Any, step_input: Any) -> Any:
        self._draw_once("recurrent_kernel", step_input)
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

    def _draw_once(self: Any, name: str, step_input: Any) -> None:
        training = self._get_call_context().get_value("training")
        drawn = self.sequence_noise()
        if name not in drawn and self.is_noisy(training):
            drawn = {**drawn, name: self._draw(name, step_input)}
            _drawn.set({**_drawn.get(), id(self): drawn})

    def _draw(self, name: str, step_input: Any) -> Any:
        weight = getattr(self, f"{name}_noise")
        if self.estimator == "local":
            return weight.scales(step_input)
        return weight.sample()

    def call(  # type: ignore[override]
        self: Any, inputs: Any, states: Any, training: bool = False
    ) -> Any:
        if not self.is_noisy(training):
            return self.plain_call(inputs, states, training=training)
        nested = isinstance(states, (list, tuple))
        state = states[0] if nested else states
        drawn = self.sequence_noise() or {
            "kernel": self._draw("kernel", inputs),
            "recurrent_kernel": self._draw("recurrent_kernel", state),
        }
        if self.estimator == "batch":
            return estimators.with_samples(
                self, list(drawn.values()), inputs, states, training=training
            )
        state = state * drawn["recurrent_kernel"]
        states = [state, *states[1:]] if nested else state
        return self.plain_call(
            inputs * drawn["kernel"], states, training=training
        )


class VariationalRecurrent(VariationalLayer):
    """Mixin: a recurrent layer with a variational cell, whose noise it is."""

    estimators = VariationalCell.estimators

    def axes_by_name(self) -> dict[str, str]:
        return {}  # Those of the cell.

    @property
    def noise_arguments(self: Any) -> NoiseArguments:  # type: ignore[override]
        return self.cell.noise_arguments

    def weights_by_name(self: Any) -> dict[str, RandomWeight]:
        return self.cell.weights_by_name()

    @property
    def seed(self: Any) -> int | None:  # type: ignore[override]
        return self.cell.seed

    def build_noise(self) -> None:
        """The cell has built it."""

    def call(  # type: ignore[override]
        self: Any,
        sequences: Any,
        initial_state: Any = None,
        mask: Any = None,
        training: bool = False,
    ) -> Any:
        self.cell.forget_sequence()
        return self.plain_call(
            sequences, initial_state=initial_state, mask=mask, training=training
        )

    def inner_loop(
        self: Any,
        sequences: Any,
        initial_state: Any,
        mask: Any,
        training: bool = False,
    ) -> Any:
        # A fused loop of the backend would not call the cell.
        loop = super().inner_loop  # type: ignore[misc]
        if self.cell.sequence_noise():
            loop = self.step_loop
        return loop(sequences, initial_state, mask, training=training)
