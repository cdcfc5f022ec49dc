"""A program of a user, which mypy checks and which the tests run.

Each `type: ignore` is a mistake that a type checker has to find: mypy refuses
one that is not needed.
"""

from typing import Any

import keras
import numpy as np
from typing_extensions import assert_type

import keras_vdrop as kv


def build(units: int) -> keras.Model:
    layers = [
        kv.VariationalDense(
            units, activation="relu", noise="correlated", granularity="input"
        ),
        kv.VariationalDense(3, kl=kv.priors.Normal(scale=0.5), rate=0.1),
    ]
    return keras.Sequential([keras.Input((4,)), *layers])


def train(model: keras.Model, x: Any, y: Any) -> None:
    kv.set_num_examples(model, len(x), kl_downscale=2.0)
    model.compile(
        "adam",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[kv.metrics.ExpectedCalibrationError(from_logits=True)],
    )
    warmup = kv.callbacks.KLWarmup(1)
    model.fit(x, y, verbose=0, callbacks=[warmup])


def main() -> None:
    x = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
    model = build(5)
    train(model, x, np.zeros(20, "int32"))
    for layer in kv.variational_layers(model):
        assert_type(layer, kv.layers.VariationalLayer)
        assert_type(layer.kl(), float)
        assert_type(layer.noise, str)
        assert_type(layer.max_alpha, float | None)
        assert_type(layer.num_examples, int | None)
    found = kv.predict(model, x, num_samples=2, from_logits=True, verbose=0)
    assert_type(found.num_samples, int)
    assert found.mean.shape == (20, 3)
    kv.summary(model, print_fn=lambda line: None)
    plain = kv.to_deterministic(model)
    assert not isinstance(plain.layers[0], kv.VariationalDense)


def mistakes(model: keras.Model) -> None:
    kv.VariationalDense("10")  # type: ignore[arg-type]
    kv.VariationalDense(10, rate="high")  # type: ignore[arg-type]
    kv.VariationalDense()  # type: ignore[call-arg]
    kv.VariationalDense(10, adaptive=None)  # type: ignore[arg-type]
    kv.VariationalConv2D(8)  # type: ignore[call-arg]
    print(kv.evaluate(model, None).mean)  # type: ignore[attr-defined]
    kv.predict(model, None, num_samples=1.5)  # type: ignore[arg-type]
    print(kv.predict(model, None).variance)  # type: ignore[attr-defined]
    kv.priors.Normal("wide")  # type: ignore[arg-type]
    kv.callbacks.KLWarmup("long")  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
