"""A model on several devices of one machine, each with a part of a batch.

    KERAS_BACKEND=jax python jax_data_parallel.py

Without accelerators, a CPU can stand for several devices:

    XLA_FLAGS=--xla_force_host_platform_device_count=4
"""

import keras
import numpy as np

import keras_vdrop as kv

x = np.random.default_rng(0).normal(size=(1000, 16)).astype("float32")
y = (x[:, 0] > 0).astype("int32")

# Before the model is made.
devices = keras.distribution.list_devices()
keras.distribution.set_distribution(keras.distribution.DataParallel())

# On JAX Keras cannot train on a batch that the devices do not divide.
whole = len(x) // len(devices) * len(devices)
x, y = x[:whole], y[:whole]

model = keras.Sequential(
    [
        keras.Input((16,)),
        kv.VariationalDense(64, activation="relu"),
        kv.VariationalDense(2),
    ]
)
kv.set_num_examples(model, len(x))  # Of all devices together.
model.compile(
    keras.optimizers.Adam(0.01),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(
    x,
    y,
    batch_size=16 * len(devices),  # Of all devices together too.
    epochs=3,
    verbose=0,
    callbacks=[kv.callbacks.DropoutRateLogger()],
)
print(len(devices), "devices, loss", history.history["loss"][-1])
kv.summary(model)

# The number of examples need not divide here: `predict` pads a batch.
found = kv.predict(model, x[:77], from_logits=True, verbose=0)
print("mutual information", found.mutual_information.mean())
model.save("data_parallel.keras")  # Loads on any number of devices.
