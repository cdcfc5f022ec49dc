"""What the variational convolutions share."""

from typing import Any

from keras import ops

from keras_vdrop.layers.base import VariationalLayer


class VariationalChannels(VariationalLayer):
    """Mixin: a layer whose inputs and outputs are channels."""

    # The channels of the inputs, the kernel, and the channels of the outputs.
    axes_of_channels: tuple[str, str, str]

    @property
    def axes(self: Any) -> Any:
        return self.equation(*self.axes_of_channels)

    def equation(self: Any, inputs: str, kernel: str, outputs: str) -> str:
        """The axes of a map, by its channels and its kernel."""
        if self.data_format == "channels_first":
            return f"n {inputs} ..., {kernel} -> n {outputs} ..."
        return f"n ... {inputs}, {kernel} -> n ... {outputs}"

    def bias_over(self: Any, outputs: Any) -> Any:
        axes = self.random_weights[-1].axes
        return axes.over_outputs(self.bias, len(outputs.shape))

    def window(self: Any) -> str:
        """The names of the axes of the window of the kernel."""
        return " ".join(f"k{number}" for number in range(self.rank))


class VariationalBaseConv(VariationalChannels):
    """Mixin: convolution as the linear map, for any number of dimensions."""

    @property
    def axes_of_channels(self: Any) -> Any:  # type: ignore[override]
        return "(g i)", f"{self.window()} i (g o)", "(g o)"

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


class VariationalBaseConvTranspose(VariationalChannels):
    """Mixin: transposed convolution as the linear map."""

    @property
    def axes_of_channels(self: Any) -> Any:  # type: ignore[override]
        return "i", f"{self.window()} o i", "o"

    def linear(self: Any, inputs: Any, kernel: Any) -> Any:
        return ops.conv_transpose(
            inputs,
            kernel,
            strides=list(self.strides),
            padding=self.padding,
            output_padding=self.output_padding,
            dilation_rate=self.dilation_rate,
            data_format=self.data_format,
        )


class VariationalBaseDepthwiseConv(VariationalChannels):
    """Mixin: convolution of each channel on its own as the linear map."""

    @property
    def axes_of_channels(self: Any) -> Any:  # type: ignore[override]
        return "c", f"{self.window()} c m", "(c m)"

    def linear(self: Any, inputs: Any, kernel: Any) -> Any:
        return ops.depthwise_conv(
            inputs,
            kernel,
            strides=self.strides,
            padding=self.padding,
            data_format=self.data_format,
            dilation_rate=self.dilation_rate,
        )


class VariationalBaseSeparableConv(VariationalChannels):
    """Mixin: a depthwise convolution, and a map of the channels behind it."""

    @property
    def axes(self: Any) -> Any:
        window = self.window()
        return {
            "depthwise_kernel": self.equation("c", f"{window} c m", "(c m)"),
            "pointwise_kernel": self.equation("i", f"{window} i o", "o"),
        }

    depthwise = VariationalBaseDepthwiseConv.linear

    @property
    def linear(self) -> Any:
        return {
            "depthwise_kernel": self.depthwise,
            "pointwise_kernel": self.pointwise,
        }

    def pointwise(self: Any, inputs: Any, kernel: Any) -> Any:
        # Not by `conv`, which tensorflow has not for channels that are first in
        # half precision on a CPU.
        axis = 1 if self.data_format == "channels_first" else -1
        kernel = ops.reshape(kernel, kernel.shape[-2:])
        outputs = ops.matmul(ops.moveaxis(inputs, axis, -1), kernel)
        return ops.moveaxis(outputs, -1, axis)
