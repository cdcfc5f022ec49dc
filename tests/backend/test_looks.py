"""On tensorflow a graph looks for the largest alpha of a layer once a step."""

import keras
import numpy as np
import pytest

import keras_vdrop

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="graphs of tensorflow"
)


def layer(parameterization):
    # Large enough for a look: see `FEW` in the backend.
    layer = keras_vdrop.VariationalDense(
        130,
        granularity="weight",
        parameterization=parameterization,
        num_examples=100,
    )
    layer.build((None, 130))
    return layer


def value_of(layer, log_alpha):
    """The value of the noise variable for a log alpha of all weights."""
    noise = layer.kernel_noise
    log_alpha = np.full((130, 130), log_alpha, "float32")
    return noise.posterior.from_log_alpha(log_alpha, layer.kernel)


both = pytest.mark.parametrize("posterior", ["multiplicative", "additive"])


@both
def test_a_step_looks_once(posterior):
    dense = layer(posterior)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(dense(x, training=True)) + dense.losses[0]
        variables = [v.value for v in dense.trainable_variables]
        return tape.gradient(loss, variables)

    graph = step.get_concrete_function(tf.ones((2, 130))).graph
    looks = [op for op in graph.get_operations() if op.type == "Max"]
    assert len(looks) == 1


@both
def test_a_write_in_the_same_graph_is_seen(posterior):
    dense = layer(posterior)
    noise = dense.kernel_noise.variable
    values = [value_of(dense, log_alpha) for log_alpha in (-1.0, 3.0, 0.0)]

    def kls():
        for value in values:
            noise.assign(value)
            yield dense.losses[0]

    within, beyond, limit = map(float, kls())
    found = [float(kl) for kl in tf.function(lambda: list(kls()))()]
    np.testing.assert_allclose(found, [within, beyond, limit], rtol=1e-5)
    # Alpha beyond the limit counts as the limit, where the KL is zero.
    np.testing.assert_allclose([beyond, limit], 0, atol=1e-5 * within)
