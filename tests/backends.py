"""What the tests need of the backends and Keras has no common name for."""

import inspect
import os
import socket
import subprocess
import sys

import keras
import numpy as np

# The version of Keras, to compare with.
KERAS = tuple(int(x) for x in keras.__version__.split(".")[:2])


def environment_of(backend=None, **variables):
    """The environment of a process on a backend, or on this one."""
    return {
        **os.environ,
        "KERAS_BACKEND": backend or keras.backend.backend(),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        **variables,
    }


def run_python(code, *arguments, backend=None, **variables):
    """Runs code in a new process and returns what it printed."""
    completed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
        env=environment_of(backend, **variables),
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def run_processes(code, count, *arguments, **variables):
    """Runs code in several processes at once, which get their number first.

    Returns what each of them printed.
    """
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code]
            + [str(x) for x in (number, *arguments)],
            env=environment_of(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    try:
        found = [process.communicate(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, found, strict=True):
        assert process.returncode == 0, errors
    return [printed for printed, _ in found]


def free_address():
    """An address of this machine for processes to meet at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def gradients(loss, layer, inputs):
    """Of `loss(outputs)` of a training call, in float32, plus `layer.losses`.

    Returns numpy arrays: the loss, the gradient by the inputs, and by each
    trainable variable of the layer.
    """
    inputs = keras.ops.convert_to_tensor(inputs)
    variables = layer.trainable_variables
    backend = keras.backend.backend()

    def total(outputs, losses):
        return loss(keras.ops.cast(outputs, "float32")) + sum(losses)

    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(inputs)
            value = total(layer(inputs, training=True), layer.losses)
        found = tape.gradient(value, [inputs, *[v.value for v in variables]])
    elif backend == "torch":
        inputs.requires_grad_(True)
        value = total(layer(inputs, training=True), layer.losses)
        tensors = [inputs, *[v.value for v in variables]]
        value.backward(inputs=tensors)
        found = [tensor.grad for tensor in tensors]
        for tensor in tensors:
            tensor.grad = None
    else:
        import jax

        def stateless(inputs, values):
            outputs, _, losses = layer.stateless_call(
                values,
                [v.value for v in layer.non_trainable_variables],
                inputs,
                training=True,
                return_losses=True,
            )
            return total(outputs, losses)

        value, (by_inputs, by_variables) = jax.value_and_grad(
            stateless, argnums=(0, 1)
        )(inputs, [v.value for v in variables])
        found = [by_inputs, *by_variables]
    return [
        np.asarray(keras.ops.convert_to_numpy(x), "float64")
        for x in (value, *found)
    ]


def derivatives(function, *arguments):
    """First and second derivatives of a pointwise function of some tensors.

    Returns numpy arrays: the gradient by each argument, and then a list of the
    gradients of each of these by each argument.
    """
    tensors = [keras.ops.convert_to_tensor(x, "float32") for x in arguments]
    backend = keras.backend.backend()

    def total(*tensors):
        return keras.ops.sum(function(*tensors))

    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape(persistent=True) as outer:
            outer.watch(tensors)
            with tf.GradientTape() as inner:
                inner.watch(tensors)
                value = total(*tensors)
            first = inner.gradient(value, tensors)
        second = [
            outer.gradient(x, tensors, unconnected_gradients="zero")
            for x in first
        ]
    elif backend == "torch":
        import torch

        tensors = [x.requires_grad_(True) for x in tensors]
        first = torch.autograd.grad(total(*tensors), tensors, create_graph=True)
        second = [
            torch.autograd.grad(
                x.sum(), tensors, retain_graph=True, materialize_grads=True
            )
            for x in first
        ]
    else:
        import jax

        every = tuple(range(len(tensors)))
        first = jax.grad(total, every)(*tensors)
        second = [
            jax.grad(lambda *x, n=n: jax.grad(total, n)(*x).sum(), every)(
                *tensors
            )
            for n in every
        ]
    to_numpy = keras.ops.convert_to_numpy
    return (
        [to_numpy(x) for x in first],
        [[to_numpy(x) for x in row] for row in second],
    )


def operations(layer, inputs, training):
    """Names of the backend's operations in one call of a layer."""
    inputs = keras.ops.convert_to_tensor(inputs)
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        function = tf.function(lambda x: layer(x, training=training))
        graph = function.get_concrete_function(inputs).graph
        return [operation.type for operation in graph.get_operations()]
    if backend == "torch":
        from torch.utils._python_dispatch import TorchDispatchMode

        class Recorder(TorchDispatchMode):
            names = []

            def __torch_dispatch__(self, function, types, args, kwargs=None):
                self.names.append(str(function))
                return function(*args, **(kwargs or {}))

        with Recorder() as recorder:
            layer(inputs, training=training)
        return recorder.names
    import jax

    # Not every Keras layer takes `training`, and `stateless_call` minds.
    takes_training = "training" in inspect.signature(layer.call).parameters
    arguments = {"training": training} if takes_training else {}
    traced = jax.make_jaxpr(
        lambda values, x: layer.stateless_call(
            [v.value for v in layer.trainable_variables],
            values,
            x,
            **arguments,
        )[0]
    )([v.value for v in layer.non_trainable_variables], inputs)
    return [str(equation.primitive) for equation in traced.eqns]
