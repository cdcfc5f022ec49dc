"""A replica of a model on each device of one machine.

KERAS_BACKEND=tensorflow python tensorflow_mirrored.py
"""

import tensorflow as tf

# Without accelerators, four parts of a CPU stand for devices. Leave this out
# where you have some.
if not tf.config.list_physical_devices("GPU"):
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        4 * [tf.config.LogicalDeviceConfiguration()],
    )

import keras
import numpy as np

import keras_vdrop as kv

x = np.random.default_rng(0).normal(size=(1000, 16)).astype("float32")
y = (x[:, 0] > 0).astype("int32")

devices = tf.config.list_logical_devices("GPU")
devices = devices or tf.config.list_logical_devices("CPU")
strategy = tf.distribute.MirroredStrategy([device.name for device in devices])
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((16,)),
            kv.VariationalDense(64, activation="relu"),
            kv.VariationalDense(2),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
kv.set_num_examples(model, len(x))  # Of all replicas together.
history = model.fit(
    x,
    y,
    batch_size=16 * strategy.num_replicas_in_sync,  # Of all together too.
    epochs=3,
    verbose=0,
    callbacks=[kv.callbacks.DropoutRateLogger()],
)
print(len(devices), "devices, loss", history.history["loss"][-1])
kv.summary(model)

found = kv.predict(model, x[:77], from_logits=True, verbose=0)
print("mutual information", found.mutual_information.mean())
model.save("mirrored.keras")  # Loads with any strategy, or none.
