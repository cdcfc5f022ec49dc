"""What the variational attention layers share."""

import dataclasses
import inspect
from typing import Any

import keras

from keras_vdrop.core import validation
from keras_vdrop.core.random_weight import RandomWeight
from keras_vdrop.layers.base import VariationalLayer
from keras_vdrop.layers.core.einsum_dense import VariationalEinsumDense

# The attributes of the projections.
PROJECTIONS = (
    "_query_dense",
    "_key_dense",
    "_gate_dense",
    "_value_dense",
    "_output_dense",
)
# Arguments that Keras 3.12 does not have and 3.15 has, with their defaults.
NEWER_ARGUMENTS = {"sliding_window": None, "use_gate": False}


class VariationalAttention(VariationalLayer):
    """Mixin: attention whose projections are variational layers.

    The noise is that of the projections, each with a seed of its own. The call
    is that of the Keras layer.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        known = inspect.signature(self.keras_class()).parameters
        for name, default in NEWER_ARGUMENTS.items():
            if name not in known and kwargs.pop(name, default) != default:
                raise NotImplementedError(
                    f"Keras {keras.__version__} has no argument `{name}` of "
                    f"`{self.keras_class().__name__}`. Install a newer one: "
                    "pip install --upgrade keras"
                )
        super().__init__(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        # Keras names the class of the projections in the code of `build`
        # (3.15, layers/attention/), and builds them afterwards.
        if name in PROJECTIONS and type(value) is keras.layers.EinsumDense:
            value = self._variational(value)
        super().__setattr__(name, value)

    def _variational(self: Any, dense: Any) -> VariationalEinsumDense:
        """The projection with noise, not built."""
        arguments = self.noise_arguments.of_part(dense.name)
        projection = VariationalEinsumDense(
            dense.equation,
            dense.partial_output_shape,
            activation=dense.activation,
            bias_axes=dense.bias_axes,
            # Objects and no config, which loses the seed of an initializer.
            kernel_initializer=dense.kernel_initializer,
            bias_initializer=dense.bias_initializer,
            kernel_regularizer=dense.kernel_regularizer,
            bias_regularizer=dense.bias_regularizer,
            activity_regularizer=dense.activity_regularizer,
            kernel_constraint=dense.kernel_constraint,
            bias_constraint=dense.bias_constraint,
            dtype=dense.dtype_policy,
            name=dense.name,
            trainable=self.trainable,
            **{
                field.name: getattr(arguments, field.name)
                for field in dataclasses.fields(arguments)
            },
        )
        projection.scale_kl(arguments.kl_share)
        return projection

    def check_noise(self) -> None:
        """The projections take every kind of noise."""

    def axes_by_name(self) -> dict[str, str]:
        return {}  # Those of the projections.

    def projections(self) -> list[VariationalEinsumDense]:
        """The layers that have the noise, once this one is built."""
        found = [getattr(self, name, None) for name in PROJECTIONS]
        return [x for x in found if isinstance(x, VariationalEinsumDense)]

    def weights_by_name(self) -> dict[str, RandomWeight]:
        return {x.name: x.kernel_noise for x in self.projections()}

    @property
    def estimator(self) -> str:
        return self.noise_arguments.estimator

    @estimator.setter
    def estimator(self, name: str) -> None:
        validation.check_choice("estimator", name, self.estimators)
        self.noise_arguments.estimator = name
        for projection in self.projections():
            projection.estimator = name

    def build(  # type: ignore[override]
        self, query_shape: Any, value_shape: Any, key_shape: Any = None
    ) -> None:
        plain: Any = super(VariationalLayer, self)
        plain.build(query_shape, value_shape, key_shape)

    def call(  # type: ignore[override]
        self,
        query: Any,
        value: Any,
        key: Any = None,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> Any:
        return self.plain_call(
            query,
            value,
            key,
            query_mask=query_mask,
            value_mask=value_mask,
            key_mask=key_mask,
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
            training=training,
            use_causal_mask=use_causal_mask,
        )

    def get_config(self: Any) -> dict[str, Any]:
        # Which Keras leaves out.
        flash_attention = self._flash_attention or None
        return {**super().get_config(), "flash_attention": flash_attention}
