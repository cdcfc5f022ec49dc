"""What the variational convolutional LSTMs share.

Weights are the same at all positions and at all steps. A factor for each
example on a channel of the inputs, or of the state, is the same at all of them
too: it is an exact sample of the weights for each example, in which all the
weights of a channel share one scale, over the window as well. A factor for
each position, as the dropout of Keras has it, would be no sample of them.
"""

import inspect
from typing import Any

import keras

from keras_vdrop.layers.recurrent.base_cell import VariationalCell
from keras_vdrop.layers.recurrent.base_recurrent import VariationalRecurrent

# Keras has no public name for its cell (3.15, layers/rnn/conv_lstm.py).
_ConvLSTMCell: Any = vars(inspect.getmodule(keras.layers.ConvLSTM1D.__base__))[
    "ConvLSTMCell"
]


class VariationalConvLSTMCell(VariationalCell, _ConvLSTMCell):
    """The cell of `VariationalConvLSTM1D` and its like, for any rank.

    The arguments are those of Keras's cell and of the noise.
    """

    @property
    def axes(self: Any) -> Any:
        equation = "n ... i, ... i o -> n ... o"
        if self.data_format == "channels_first":
            equation = "n i ..., ... i o -> n o ..."
        return {"kernel": equation, "recurrent_kernel": equation}


class VariationalConvLSTM(VariationalRecurrent):
    """Mixin: a convolutional LSTM, for any number of dimensions."""

    cell_class = VariationalConvLSTMCell

    def make_cell(
        self, plain: Any, arguments: dict[str, Any], **more: Any
    ) -> Any:
        return super().make_cell(plain, arguments, rank=plain.cell.rank, **more)
