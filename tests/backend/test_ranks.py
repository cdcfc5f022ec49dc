"""Ranks of torch's `DistributedDataParallel`, with gloo."""

import keras
import pytest
from backends import run_processes

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="`torch.distributed`"
)

CODE = """
import sys

import keras
import numpy as np
import torch
import torch.distributed as distributed
from torch.nn.parallel import DistributedDataParallel

import keras_vdrop

rank, folder = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
)
generator = np.random.default_rng(0)
x = torch.tensor(generator.normal(size=(32, 6)), dtype=torch.float32)
y = torch.tensor(generator.normal(size=(32, 3)), dtype=torch.float32)
# A rate for which noise is below the rounding of float32.
SILENT = {"rate": 1e-20, "num_examples": 100}


def make(**arguments):
    keras.utils.set_random_seed(rank)  # Rank 0 gives the others its weights.
    return keras.Sequential([
        keras.Input((6,)),
        keras_vdrop.VariationalDense(5, granularity="weight", **arguments),
        keras_vdrop.VariationalDense(3, **arguments),
    ])


def train(model, called, x, y, steps=1, learning_rate=0.1):
    optimizer = torch.optim.SGD(called.parameters(), learning_rate)
    for _ in range(steps):
        optimizer.zero_grad()
        outputs = called(x, training=True)
        loss = torch.square(outputs - y).mean() + sum(model.losses)
        loss.backward()
        optimizer.step()
    return loss.detach()


def of_ranks(array):
    found = [None, None]
    distributed.all_gather_object(found, np.asarray(array))
    return found


def same(model):
    for weight in model.get_weights():
        first, second = of_ranks(weight)
        np.testing.assert_array_equal(first, second)


model = make(**SILENT)
parallel = DistributedDataParallel(model)
before = model.get_weights()
# The KL of one device, beside the error without noise.
with torch.no_grad():
    by_hand = torch.square(model(x) - y).mean()
by_hand = float(by_hand) + sum(layer.kl() for layer in model.layers) / 100
loss = train(model, parallel, x[rank::2], y[rank::2])
same(model)
alone = make(**SILENT)
alone.set_weights(before)
expected = train(alone, alone, x, y)
np.testing.assert_allclose(np.mean(of_ranks(loss)), expected, rtol=1e-6)
np.testing.assert_allclose(expected, by_hand, rtol=1e-6)
for one, other in zip(alone.get_weights(), model.get_weights()):
    np.testing.assert_allclose(other, one, atol=1e-7, rtol=0)

# One process goes on with a file of two.
path = f"{folder}/{rank}.keras"
model.save(path)
again = keras.saving.load_model(path)
train(model, parallel, x[rank::2], y[rank::2])
train(again, again, x, y)
for one, other in zip(again.get_weights(), model.get_weights()):
    np.testing.assert_allclose(other, one, atol=2e-7, rtol=0)

# Identical rows on both ranks, in two layers with the same kernel.
layers = [
    keras_vdrop.VariationalDense(3, kernel_initializer="ones")
    for _ in range(2)
]
for layer in layers:
    layer.build((None, 6))
    layer.set_weights([of_ranks(w)[0] for w in layer.get_weights()])
with torch.no_grad():
    rows = [layer(torch.ones(3, 6), training=True) for layer in layers]
rows = np.concatenate(of_ranks(torch.cat(rows)))
assert rows.shape == (12, 3) and len(np.unique(rows, axis=0)) == 12

# A KL that is much stronger than the data drives alpha to its limit and, with
# an optimizer that knows no constraints, the variable past it.
model = make(rate=0.4, num_examples=1, seed=3)
parallel = DistributedDataParallel(model)
train(model, parallel, x[rank::2], y[rank::2], steps=20, learning_rate=0.3)
same(model)
for layer in model.layers:
    assert np.max(layer.dropout_rates()) == 0.5
assert np.max(model.layers[0].kernel_noise.variable.numpy()) > 0.0
for variable in model.trainable_variables:
    if variable.constraint is not None:
        variable.assign(variable.constraint(variable))
assert np.max(model.layers[0].kernel_noise.variable.numpy()) <= 0.0

# The callback in a loop of one's own.
model = make(rate=0.3, num_examples=50)
parallel = DistributedDataParallel(model)
warmup = keras_vdrop.callbacks.KLWarmup(2)
warmup.set_model(model)
shares = []
for epoch in range(3):
    warmup.on_epoch_begin(epoch)
    train(model, parallel, x[rank::2], y[rank::2])
    shares.append(50 * float(model.layers[0].kl_weight))
np.testing.assert_allclose(shares, [0.0, 0.5, 1.0], rtol=1e-6)
print("done")
"""


def test_two_ranks(tmp_path):
    for printed in run_processes(CODE, 2, tmp_path):
        assert "done" in printed
