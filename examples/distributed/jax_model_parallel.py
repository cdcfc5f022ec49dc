"""A model whose kernels are spread over devices, and batches too.

    KERAS_BACKEND=jax python jax_model_parallel.py

Without accelerators, a CPU can stand for several devices:

    XLA_FLAGS=--xla_force_host_platform_device_count=4
"""

import keras
import numpy as np

import keras_vdrop as kv

x = np.random.default_rng(0).normal(size=(1024, 16)).astype("float32")
y = (x[:, 0] > 0).astype("int32")

# Half of the devices share a batch, two share a kernel.
devices = keras.distribution.list_devices()
mesh = keras.distribution.DeviceMesh(
    (len(devices) // 2, 2), ("batch", "model"), devices
)
layouts = keras.distribution.LayoutMap(mesh)
# A key has to match the whole path. The noise of a kernel takes the layout of
# the kernel, so it needs no key.
layouts[".*kernel"] = (None, "model")
layouts[".*bias"] = ("model",)
keras.distribution.set_distribution(
    keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
)

model = keras.Sequential(
    [
        keras.Input((16,)),
        kv.VariationalDense(64, granularity="weight", activation="relu"),
        kv.VariationalDense(2, granularity="weight"),
    ]
)
kv.set_num_examples(model, len(x))
model.compile(
    keras.optimizers.Adam(0.01),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(
    x,
    y,
    batch_size=64,
    epochs=3,
    verbose=0,
    callbacks=[kv.callbacks.DropoutRateLogger()],
)
print(len(devices), "devices, loss", history.history["loss"][-1])
kernel = model.layers[0].kernel.value
noise = model.layers[0].kernel_noise.variable.value
print("kernel", kernel.sharding.spec, "noise", noise.sharding.spec)
kv.summary(model)

found = kv.predict(model, x[:77], from_logits=True, verbose=0)
print("mutual information", found.mutual_information.mean())

# Pruned widths need not divide the mesh: what does not is on each device.
plain = kv.to_deterministic(model, prune=-2.94)
print("outputs", plain.predict(x[:8], verbose=0).shape)
model.save("model_parallel.keras")
