"""Training on JAX in which an epoch is one compiled call.

At 100 units `fit` spends up to half of its time on starting the steps. Here
the data stay on the device and `jax.lax.scan` runs all steps of an epoch.
The arithmetic is that of `fit`: `stateless_call` of the model, its losses, and
`stateless_apply` of a Keras optimizer.
"""

import typing

import jax
import jax.numpy as jnp
import keras
import numpy as np


class State(typing.NamedTuple):
    """The arrays that training changes."""

    trainable: list
    non_trainable: list
    optimizer: list
    average: list
    steps: jax.Array


class ScannedTraining:
    """Training with Adam, and the average of the weights over the steps.

    The average is that of section 7.2 of the paper on Adam: exponential, with
    a correction of the initial bias. `average_epochs` is its horizon. While
    training is shorter than that, the average is close to the plain mean over
    all steps.

    Args:
        build: Function without arguments that returns the network, the same
            at each call but for its random values.
        data: Training examples and labels.
        batch_size: Examples in a step.
        average_epochs: Horizon of the average, in epochs.
        scan: Whether an epoch is one call. If not, each step is one: inside a
            loop XLA computes convolutions on a CPU 27 times slower (JAX 0.10).
    """

    def __init__(
        self, build, data, batch_size=100, average_epochs=20, scan=True
    ):
        self.build = build
        self.data = tuple(map(jnp.asarray, data))
        self.batch_size = batch_size
        self.steps = len(data[0]) // batch_size
        self.horizon = average_epochs * self.steps
        self.model = build()
        self.optimizer = keras.optimizers.Adam()
        self.optimizer.build(self.model.trainable_variables)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.run_steps = jax.jit(
            self._scan if scan else self._step, donate_argnums=0
        )
        self.scan = scan
        self._wrong = jax.jit(self._count_wrong)

    def begin(self, seed):
        """Returns the state before the first step, for this seed."""
        keras.utils.set_random_seed(seed)
        model = self.build()
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        state = State(
            values(model.trainable_variables),
            values(model.non_trainable_variables),
            values(optimizer.variables),
            values(model.trainable_variables),
            jnp.zeros((), "int32"),
        )
        # An epoch reuses the memory of its state, so no two may share theirs.
        return jax.tree.map(jnp.copy, state)

    def epoch(self, state, seed):
        """Returns the state after an epoch, and the mean loss.

        The order of the examples depends on the seed and on the number of
        steps so far, so that training can be interrupted and resumed. The
        given state cannot be used again.
        """
        generator = np.random.default_rng([seed, int(state.steps)])
        order = generator.permutation(len(self.data[0])).astype("int32")
        order = order[: self.steps * self.batch_size]
        order = order.reshape(self.steps, self.batch_size)
        if self.scan:
            state, losses = self.run_steps(state, order, *self.data)
            return state, float(losses.mean())
        losses = []
        for rows in order:
            state, loss = self.run_steps(state, rows, *self.data)
            losses.append(loss)
        return state, float(np.mean(losses))

    def error_percent(self, state, data):
        """Returns the error of the averaged weights, without noise."""
        wrong = sum(
            int(
                self._wrong(
                    state, *(part[start : start + 1000] for part in data)
                )
            )
            for start in range(0, len(data[0]), 1000)
        )
        return 100 * wrong / len(data[0])

    def averaged_model(self, state):
        """Returns the model with the averaged weights, until the next call."""
        for variables, arrays in (
            (self.model.trainable_variables, state.average),
            (self.model.non_trainable_variables, state.non_trainable),
        ):
            for variable, array in zip(variables, arrays, strict=True):
                variable.assign(array)
        return self.model

    def _scan(self, state, order, x, y):
        return jax.lax.scan(
            lambda state, rows: self._step(state, rows, x, y), state, order
        )

    def _step(self, state, rows, x, y):
        (loss, non_trainable), gradients = jax.value_and_grad(
            self._objective, has_aux=True
        )(state.trainable, state.non_trainable, x[rows], y[rows])
        trainable, optimizer = self.optimizer.stateless_apply(
            state.optimizer, gradients, state.trainable
        )
        steps = state.steps + 1
        # The last step's share: 1 at first, in the end 1 / horizon.
        forgotten = jnp.expm1(steps * float(np.log1p(-1 / self.horizon)))
        share = -1 / (self.horizon * forgotten)
        average = [
            mean + share * (value - mean)
            for mean, value in zip(state.average, trainable, strict=True)
        ]
        state = State(trainable, non_trainable, optimizer, average, steps)
        return state, loss

    def _objective(self, trainable, non_trainable, x, y):
        logits, non_trainable, losses = self.model.stateless_call(
            trainable, non_trainable, x, training=True, return_losses=True
        )
        return self.loss(y, logits) + sum(losses), non_trainable

    def _count_wrong(self, state, x, y):
        logits, _ = self.model.stateless_call(
            state.average, state.non_trainable, x, training=False
        )
        return jnp.sum(jnp.argmax(logits, axis=-1) != y)


def values(variables):
    return [variable.value for variable in variables]
