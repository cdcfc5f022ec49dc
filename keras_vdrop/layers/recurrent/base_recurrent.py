"""What the variational recurrent layers share."""

import inspect
from typing import Any

import keras

from keras_vdrop.core import arguments as noise_arguments
from keras_vdrop.core.random_weight import RandomWeight
from keras_vdrop.layers.base import VariationalLayer
from keras_vdrop.layers.recurrent.base_cell import VariationalCell
from keras_vdrop.layers.recurrent.base_cell import trains


class VariationalRecurrent(VariationalLayer):
    """Mixin: a recurrent layer with a variational cell, whose noise it is.

    Args:
        **arguments: All arguments of the Keras layer and of the noise.
    """

    # The class of the cell.
    cell_class: Any
    estimators = VariationalCell.estimators

    def __init__(self, **arguments: Any):
        names = set(noise_arguments.NAMES) - {"seed"}
        own = {k: v for k, v in arguments.items() if k not in names}
        # Only to check its arguments, and for what follows from them.
        plain = self.keras_class()(**own)
        cell = self.make_cell(plain, arguments)
        taken = {*names, *_arguments_of_cell(plain), "use_cudnn"}
        # The constructor of the Keras layer would make a cell of its own.
        keras.layers.RNN.__init__(
            self, cell, **{k: v for k, v in own.items() if k not in taken}
        )
        self.input_spec = plain.input_spec
        self.supports_jit = plain.supports_jit
        if hasattr(plain, "use_cudnn"):
            self.use_cudnn = plain.use_cudnn
        if own.get("go_backwards"):
            # `Bidirectional` makes two layers of one config, seed included.
            for weight in cell.random_weights:
                weight.salt += " backwards"

    def make_cell(
        self, plain: Any, arguments: dict[str, Any], **more: Any
    ) -> Any:
        """The variational form of the cell of a plain layer."""
        names = {*_arguments_of_cell(plain), *noise_arguments.NAMES}
        names |= {"dtype", "trainable"}
        found = {k: v for k, v in arguments.items() if k in names}
        return self.cell_class(**found, **more, name=plain.cell.name)

    def check_noise(self: Any) -> None:
        self.cell.check_noise()

    def axes_by_name(self) -> dict[str, str]:
        return {}  # Those of the cell.

    @property
    def noise_arguments(  # type: ignore[override]
        self: Any,
    ) -> noise_arguments.NoiseArguments:
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
        with trains(training):
            return self.plain_call(
                sequences,
                initial_state=initial_state,
                mask=mask,
                training=training,
            )

    def inner_loop(
        self: Any,
        sequences: Any,
        initial_state: Any,
        mask: Any,
        training: bool = False,
    ) -> Any:
        if self.cell.sequence_noise():
            # A fused loop of the backend would not call the cell.
            return keras.layers.RNN.inner_loop(
                self, sequences, initial_state, mask, training=training
            )
        return super().inner_loop(  # type: ignore[misc]
            sequences, initial_state, mask, training=training
        )


def _arguments_of_cell(plain: Any) -> list[str]:
    # `implementation` is among the keywords of the cell (3.15,
    # layers/rnn/lstm.py).
    return [*inspect.signature(type(plain.cell)).parameters, "implementation"]
