"""Several processes, on one machine or on many, that train one model.

Start one for each process, with its number:

    KERAS_BACKEND=jax python jax_processes.py 127.0.0.1:1234 2 0
    KERAS_BACKEND=jax python jax_processes.py 127.0.0.1:1234 2 1

The address is that of process 0. Without accelerators JAX connects the
processes with gloo.
"""

import sys

import keras
import numpy as np

import keras_vdrop as kv

address, processes, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
# First of all: before anything asks for the devices. The processes get the same
# seed, so that they make the same model and draw the same samples.
keras.distribution.initialize(address, processes, number)
devices = keras.distribution.list_devices()  # Of all processes.
keras.distribution.set_distribution(
    # Keras would shard a `tf.data.Dataset` of all examples by itself. Here
    # each process has examples of its own.
    keras.distribution.DataParallel(auto_shard_dataset=False)
)

x = np.random.default_rng(0).normal(size=(1024, 16)).astype("float32")
y = (x[:, 0] > 0).astype("int32")
own_x, own_y = x[number::processes], y[number::processes]

model = keras.Sequential(
    [
        keras.Input((16,)),
        kv.VariationalDense(64, activation="relu"),
        kv.VariationalDense(2),
    ]
)
kv.set_num_examples(model, len(x))  # Of all processes together.
model.compile(
    keras.optimizers.Adam(0.01),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(
    own_x,
    own_y,
    batch_size=32,  # Of this process.
    epochs=3,
    verbose=0,
    callbacks=[kv.callbacks.DropoutRateLogger()],
)
# What follows is done by all processes together, so each of them calls it.
print(number, len(devices), "devices, loss", history.history["loss"][-1])
kv.summary(model, print_fn=print if number == 0 else lambda line: None)

# Each process predicts examples of its own, as many as the others.
# `model.predict` fails: an array that spans processes has no value here.
found = kv.predict(model, own_x[:50], from_logits=True, verbose=0)
print(number, found.mean.shape, found.mutual_information.mean())
# Keras makes variables to save a model, so this waits for the others too.
model.save(f"processes_{number}.keras")
