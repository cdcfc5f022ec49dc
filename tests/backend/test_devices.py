"""Several devices on JAX: the same training, no traffic for the noise."""

import keras
import pytest
from backends import run_python

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="`keras.distribution` needs jax"
)

EIGHT = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
START = """
import collections
import re

import jax
import keras
import numpy as np

import keras_vdrop

INDEPENDENT = {"noise": "independent"}
ADDITIVE = {"granularity": "weight", "parameterization": "additive"}
POSTERIORS = {
    "correlated": {"noise": "correlated"},
    "correlated, input": {"noise": "correlated", "granularity": "input"},
    "layer": INDEPENDENT,
    "input": {**INDEPENDENT, "granularity": "input"},
    "output": {"granularity": "output"},
    "weight": {"granularity": "weight"},
    "additive": ADDITIVE,
    "normal": {**ADDITIVE, "kl": "normal", "max_alpha": None},
}
INPUTS, UNITS = 24, 16
generator = np.random.default_rng(0)
x = generator.normal(size=(32, INPUTS)).astype("float32")
y = generator.normal(size=(32, UNITS)).astype("float32")
distribution = keras.distribution
devices = distribution.list_devices()
assert len(devices) == 8


def data_parallel():
    return distribution.DataParallel(devices=devices)


def model_parallel(kernel=(None, "model"), **more):
    mesh = distribution.DeviceMesh((2, 4), ("batch", "model"), devices)
    layouts = distribution.LayoutMap(mesh)
    layouts[".*kernel"] = kernel
    layouts[".*bias"] = ("model",)
    for path, layout in more.items():
        layouts[path] = layout
    return distribution.ModelParallel(
        layout_map=layouts, batch_dim_name="batch"
    )


def make(layer, *sizes, shape=(INPUTS,), **arguments):
    keras.utils.set_random_seed(0)
    if issubclass(layer, keras_vdrop.layers.VariationalLayer):
        arguments = {"num_examples": 100, "rate": 0.3, "seed": 1, **arguments}
    layer = layer(*sizes or (UNITS,), **arguments)
    model = keras.Sequential([keras.Input(shape), layer])
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    return model


def data_of(shape, model):
    generator = np.random.default_rng(0)
    return [
        generator.normal(size=(16, *size)).astype("float32")
        for size in (shape, model.output_shape[1:])
    ]
"""

SAME_TRAINING = """
INITIAL = keras.initializers.GlorotUniform(seed=0)
WRAPPED = {"estimator": "example"}
cases = {
    "wrapped": WRAPPED,
    **POSTERIORS,
    "batch": {**INDEPENDENT, "estimator": "batch"},
    "example": {**INDEPENDENT, "estimator": "example"},
    "flipout": {**INDEPENDENT, "estimator": "flipout"},
    "flipout, weight": {"granularity": "weight", "estimator": "flipout"},
    "flipout, additive": {**ADDITIVE, "estimator": "flipout"},
}


def train(arguments):
    layer, sizes = keras_vdrop.VariationalDense, ()
    if arguments is WRAPPED:
        layer = keras_vdrop.Variational
        sizes = (keras.layers.Dense(UNITS, kernel_initializer=INITIAL),)
    model = make(layer, *sizes, **arguments)
    losses = [float(model.train_on_batch(x, y)) for _ in range(2)]
    return [losses, *(np.array(weight) for weight in model.get_weights())]


expected = {name: train(arguments) for name, arguments in cases.items()}
for spread in data_parallel, model_parallel:
    distribution.set_distribution(spread())
    for name, arguments in cases.items():
        found = train(arguments)
        for one, other in zip(expected[name], found, strict=True):
            np.testing.assert_allclose(
                other, one, rtol=1e-5, atol=1e-6, err_msg=name
            )
"""

COLLECTIVES = """
def trained(layer, *sizes, shape=(INPUTS,), **arguments):
    model = make(layer, *sizes, shape=shape, **arguments)
    model.train_on_batch(*data_of(shape, model))
    return model


def compiled(model):
    x, y = data_of(model.input_shape[1:], model)
    state = [
        [variable.value for variable in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
    ]
    spread = distribution.distribution()
    batch = [
        jax.device_put(a, spread.get_data_layout(a.shape).backend_layout)
        for a in (x, y)
    ]
    kept = [jax.tree.map(lambda a: a.sharding, part) for part in state]
    step = jax.jit(model.train_step, out_shardings=(None, tuple(kept)))
    return step.lower(tuple(state), tuple(batch)).compile().as_text()


def collectives(program):
    found = collections.Counter()
    for line in program.splitlines():
        match = re.search(
            r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all"
            r"|collective-permute)(?:-start)?\\(",
            line,
        )
        for sizes in re.findall(r"\\[([\\d,]*)\\]", match[1]) if match else ():
            sizes = [int(size) for size in sizes.split(",") if size]
            found[match[2]] += int(np.prod(sizes))
    return found
"""

TRAFFIC = """
for spread in data_parallel, model_parallel:
    distribution.set_distribution(spread())
    plain = collectives(compiled(trained(keras.layers.Dense)))
    assert set(plain) == {"all-reduce"}, plain
    for name, arguments in POSTERIORS.items():
        model = trained(keras_vdrop.VariationalDense, **arguments)
        found = collectives(compiled(model))
        # Only sums: of the gradients of the variables, the variable of the
        # noise among them, and a few scalars. Noise on the inputs of a split
        # layer needs the gradient of these inputs too.
        assert set(found) == {"all-reduce"}, (name, found)
        granularity = arguments.get("granularity", "layer")
        alphas = {"layer": 1, "input": INPUTS, "output": UNITS}
        more = alphas.get(granularity, INPUTS * UNITS)
        if spread is model_parallel:
            correlated = arguments.get("noise") == "correlated"
            of_inputs = correlated or granularity == "input"
            more = more / 4 if granularity in ("weight", "output") else more
            more += of_inputs * 8 * INPUTS
        assert found["all-reduce"] <= plain["all-reduce"] + more + 4, (
            name, found, plain
        )
    # A sample for each example: each device has a loop over its own, with no
    # traffic inside. Mean and standard deviation have a gradient each.
    model = trained(
        keras_vdrop.VariationalDense, **INDEPENDENT, estimator="example"
    )
    program = compiled(model)
    loops, _ = program.split("\\nENTRY")
    found = collectives(program)
    assert set(found) == {"all-reduce"} and not collectives(loops), program
    shards, parts = (8, 1) if spread is data_parallel else (2, 4)
    more = INPUTS * UNITS // parts
    assert found["all-reduce"] <= plain["all-reduce"] + more + 4, (found, plain)
    turns = re.findall(r'known_trip_count":{"n":"(\\d+)"', program)
    assert str(16 // shards) in turns and "16" not in turns, turns
"""

ONE_SUM = """
import sys

# Of each kind of linear map: the arguments, the shape of the inputs and which
# axes of the kernel are spread over devices.
IMAGES = (6, 5, 8)
WINDOW = (None, None, None, "model")
KINDS = {
    "Dense": ((16,), (24,), (None, "model")),
    "Conv1D": ((8, 3, 2, "causal"), (6, 4), WINDOW[1:]),
    "Conv2D": ((8, 3), IMAGES, WINDOW),
    "Conv2DTranspose": ((8, 3), IMAGES, (None, None, "model", None)),
    "DepthwiseConv2D": ((3,), IMAGES, (None, None, "model", None)),
    "SeparableConv2D": ((8, 3), IMAGES, (None, None, "model", None)),
    "EinsumDense": (
        ("abc,cde->abde", (3, 4, 2)),
        (3, 8),
        (None, "model", None),
    ),
}

name = sys.argv[1]
sizes, shape, kernel = KINDS[name]
layer = getattr(keras_vdrop, f"Variational{name}")
cases = [
    {"noise": "independent", "estimator": estimator, "shape": shape}
    for estimator in ("local", "flipout")
]
expected = [trained(layer, *sizes, **case).get_weights() for case in cases]
spreads = data_parallel(), model_parallel(kernel)
for spread in spreads:
    distribution.set_distribution(spread)
    plain = trained(getattr(keras.layers, name), *sizes, shape=shape)
    plain = collectives(compiled(plain))
    for case, weights in zip(cases, expected, strict=True):
        model = trained(layer, *sizes, **case)
        for one, other in zip(weights, model.get_weights(), strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
        # With its channels spread over devices the plain layer too gathers
        # what is between its two maps, and XLA chooses where.
        if name == "SeparableConv2D" and spread is not spreads[0]:
            continue
        found = collectives(compiled(model))
        # One sum of the gradient of a kernel, as in the plain layer.
        assert set(found) == {"all-reduce"}, (name, found)
        assert found["all-reduce"] <= plain.total() + 4, (
            name, spread, case, found, plain
        )
"""

LAYOUTS = """
def axes_of(spread, **arguments):
    distribution.set_distribution(spread)
    layer = keras_vdrop.VariationalDense(UNITS, name="dense", **arguments)
    layer.build((None, INPUTS))
    weight = layer.kernel_noise
    return distribution.distribution().get_variable_layout(weight.variable).axes


assert axes_of(model_parallel()) == ()
assert axes_of(model_parallel(), granularity="input") == (None,)
assert axes_of(model_parallel(), granularity="output") == ("model",)
assert axes_of(model_parallel(), granularity="weight") == (None, "model")
assert axes_of(model_parallel(), **ADDITIVE) == (None, "model")
assert axes_of(data_parallel(), granularity="weight") == (None, None)
# The user's own word counts.
own = {".*kernel_noise/log_alpha": ("model", None)}
assert axes_of(model_parallel(**own), granularity="weight") == ("model", None)
own = {".*kernel_noise/log_alpha": (None, None)}
assert axes_of(model_parallel(**own), granularity="weight") == (None, None)
# Noise that belongs to no kernel, and layers of other axes.
distribution.set_distribution(model_parallel())
layer = keras_vdrop.VariationalDropout(granularity="input")
layer.build((None, INPUTS))
layer = keras_vdrop.VariationalEmbedding(5, 8, granularity="weight")
layer.build((None,))
layer = keras_vdrop.VariationalLSTM(8)
layer.build((None, 8, 4))

# Keras compiles the initializer of a variable as large as this.
for arguments in {"granularity": "weight"}, ADDITIVE:
    distribution.set_distribution(data_parallel())
    layer = keras_vdrop.VariationalDense(2900, **arguments)
    layer.build((None, 2900))
    assert abs(float(layer.dropout_rates().mean()) - 0.05) < 1e-5
"""


LIFE = """
import pathlib
import sys

path = pathlib.Path(sys.argv[1]) / "model.keras"


def network(**arguments):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input((INPUTS,)),
        keras_vdrop.VariationalDense(
            UNITS, granularity="weight", activation="relu", **arguments
        ),
        keras_vdrop.VariationalDense(UNITS, noise="correlated", **arguments),
    ])
    model.compile(keras.optimizers.SGD(0.3), "mse")
    return model


def fit(model, epochs=1, **more):
    return model.fit(
        x, y, batch_size=16, epochs=epochs, shuffle=False, verbose=0, **more
    ).history["loss"]


def mean_of(model):
    # Batches of 16 and 11.
    return keras_vdrop.predict(
        model, x[:27], 3, batch_size=16, seed=0, verbose=0
    ).mean


# A KL that is much stronger than the data drives alpha to its limit.
strong = {"rate": 0.4, "num_examples": 1, "seed": 3}
usual = {"rate": 0.3, "num_examples": 100, "seed": 3}
alone = network(**usual)
fit(alone)
one_mean = mean_of(alone)
# Widths that no mesh divides are left.
alphas = alone.layers[0].kernel_noise.variable
low = np.full(alphas.shape, -5.0)
low[:, :5] = 0.0
one_rates = alone.layers[0].dropout_rates()
alphas_before = np.array(alphas)
alphas.assign(low)
one_pruned = keras_vdrop.to_deterministic(alone, prune=-1.0, verbose=0)
one_outputs = one_pruned.predict(x, verbose=0)
assert one_pruned.layers[0].units == UNITS - 5
alphas.assign(alphas_before)
expected = fit(alone)
scores = keras_vdrop.evaluate(alone, x[:27], y[:27], num_samples=2, seed=0)

for spread in data_parallel, model_parallel:
    distribution.set_distribution(spread())
    keras.utils.set_random_seed(0)
    # Identical rows on all shards, in two layers with the same kernel.
    layers = [
        keras_vdrop.VariationalDense(8, kernel_initializer="ones")
        for _ in range(2)
    ]
    ones = np.ones((32, INPUTS), "float32")
    layout = distribution.distribution().get_data_layout(ones.shape)
    ones = jax.device_put(ones, layout.backend_layout)
    rows = np.concatenate([layer(ones, training=True) for layer in layers])
    assert len(np.unique(rows, axis=0)) == 64

    model = network(**strong)
    fit(model, epochs=10)  # 20 steps.
    for variable in model.variables:
        parts = {}
        for shard in variable.value.addressable_shards:
            first = parts.setdefault(str(shard.index), shard.data)
            np.testing.assert_array_equal(shard.data, first)
    for layer in model.layers:
        assert np.max(layer.log_alpha) <= 1e-6
        assert np.max(layer.dropout_rates()) == 0.5

    model = network(**usual)
    shares = []
    check = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: shares.append(
            float(model.layers[0].kl_weight)
        )
    )
    warmup = keras_vdrop.callbacks.KLWarmup(2)
    fit(model, 3, callbacks=[warmup, check])
    np.testing.assert_allclose(shares, [0.0, 0.005, 0.01], rtol=1e-6)

    model = network(**usual)
    fit(model)
    np.testing.assert_allclose(mean_of(model), one_mean, atol=1e-6)
    rates = model.layers[0].dropout_rates()
    np.testing.assert_allclose(rates, one_rates, rtol=1e-5)
    lines = []
    keras_vdrop.summary(model, print_fn=lines.append)
    shown = [float(number) for number in lines[5].split()[3:6]]
    found = rates.mean(), rates.min(), rates.max()
    np.testing.assert_allclose(shown, found, atol=5.1e-4)

    # Another number of devices, and one, go on with a file.
    model.save(path)
    assert abs(fit(model)[0] - expected[0]) < 1e-6
    found = keras_vdrop.evaluate(
        model, x[:27], y[:27], num_samples=2, seed=0, verbose=0
    )
    for name, score in scores.items():
        np.testing.assert_allclose(found[name], score, rtol=1e-5)
    for other in None, model_parallel(), data_parallel():
        distribution.set_distribution(other)
        again = keras.saving.load_model(path)
        assert abs(fit(again)[0] - expected[0]) < 1e-6

    distribution.set_distribution(spread())
    model = keras.saving.load_model(path)
    model.layers[0].kernel_noise.variable.assign(low)
    pruned = keras_vdrop.to_deterministic(model, prune=-1.0, verbose=0)
    assert pruned.layers[0].units == UNITS - 5
    outputs = pruned.predict(x, verbose=0)
    np.testing.assert_allclose(outputs, one_outputs, atol=1e-6)
    distribution.set_distribution(None)
"""


@pytest.mark.parametrize(
    "code",
    [
        SAME_TRAINING,
        COLLECTIVES + TRAFFIC,
        LAYOUTS,
        LIFE,
    ],
    ids=["training", "traffic", "layouts", "life"],
)
def test_eight_devices(code, tmp_path):
    run_python(START + code, tmp_path, **EIGHT)


@pytest.mark.parametrize(
    "kind",
    [
        "Conv2D",
        "Conv1D",
        "Conv2DTranspose",
        "Dense",
        "DepthwiseConv2D",
        "EinsumDense",
        "SeparableConv2D",
    ],
)
def test_one_sum_of_the_gradients_of_a_kernel(kind):
    run_python(START + COLLECTIVES + ONE_SUM, kind, **EIGHT)
