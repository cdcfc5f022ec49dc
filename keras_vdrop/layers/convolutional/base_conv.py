"""What the variational convolutions share."""

from typing import Any

from keras import ops

from keras_vdrop.layers.base import VariationalLayer


class VariationalChannels(VariationalLayer):
    """Mixin: a layer whose inputs and outputs are channels."""

    # The channels of the inputs, the kernel, and the channels of the outputs.
    axes_of_channels: tuple[str, str, str]

    @property
    def axes(self: Any) -> str:
        inputs, kernel, outputs = self.axes_of_channels
        if self.data_format == "channels_first":
            return f"n {inputs} ..., {kernel} -> n {outputs} ..."
        return f"n ... {inputs}, {kernel} -> n ... {outputs}"

    def bias_over(self: Any, outputs: Any) -> Any:
        axes = self.kernel_noise.axes
        return axes.over_outputs(self.bias, len(outputs.shape))


class VariationalBaseConv(VariationalChannels):
    """Mixin: convolution as the linear map, for any number of dimensions."""

    @property
    def axes_of_channels(self: Any) -> Any:  # type: ignore[override]
        window = " ".join(f"k{number}" for number in range(self.rank))
        return "(g i)", f"{window} i (g o)", "(g o)"

    def axis_sizes(self: Any) -> dict[str, int]:
        return {"g": self.groups}

    def linear(self: Any, inputs: Any, kernel: Any) -> Any:
        padding = self.padding
        if padding == "causal":
            past = (self.dilation_rate[0] * (self.kernel_size[0] - 1), 0)
            channels_first = self.data_format == "channels_first"
            widths = ((0, 0), past) if channels_first else (past, (0, 0))
            inputs = ops.pad(inputs, ((0, 0), *widths))
            padding = "valid"
        return ops.conv(
            inputs,
            kernel,
            strides=list(self.strides),
            padding=padding,
            dilation_rate=self.dilation_rate,
            data_format=self.data_format,
        )
