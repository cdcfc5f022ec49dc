"""Memory and traffic of a training step on several devices, by the compiler.

    export XLA_FLAGS=--xla_force_host_platform_device_count=8
    KERAS_BACKEND=jax python examples/benchmarks/devices.py

Nothing is timed. One layer with a square kernel and an optimizer that has two
numbers for each variable, Adam, is compiled for all devices. The program says
how many bytes each device holds (the variables, those of the optimizer and
what a step needs besides) and what it sends to the others. A part of that does
not depend on the kernel. It is left out: two widths are compiled, and the
figures are those of the additional weights.
"""

import argparse
import collections
import re

import keras
import numpy as np

import keras_vdrop as kv

ADDITIVE = {"granularity": "weight", "parameterization": "additive"}
LAYERS = {
    "`Dense`": None,
    "correlated, one alpha per layer": {"noise": "correlated"},
    "correlated, per input": {"noise": "correlated", "granularity": "input"},
    "independent, per layer": {"noise": "independent"},
    "independent, per input": {
        "noise": "independent",
        "granularity": "input",
    },
    "independent, per output": {"granularity": "output"},
    "independent, per weight": {"granularity": "weight"},
    "additive": ADDITIVE,
    "additive, normal prior": {**ADDITIVE, "kl": "normal", "max_alpha": None},
    "independent, per layer, a sample for a batch": {
        "noise": "independent",
        "estimator": "batch",
    },
    "independent, per layer, flipout": {
        "noise": "independent",
        "estimator": "flipout",
    },
}
BATCH = 8
OPERATIONS = (
    "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
)
BYTES = {"f32": 4, "u32": 4, "s32": 4, "pred": 1}


def data_parallel():
    return keras.distribution.DataParallel()


def model_parallel():
    devices = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh(
        (2, len(devices) // 2), ("batch", "model"), devices
    )
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*kernel"] = (None, "model")
    layouts[".*bias"] = ("model",)
    return keras.distribution.ModelParallel(
        layout_map=layouts, batch_dim_name="batch"
    )


def compiled_step(arguments, width):
    """The program of a training step on all devices."""
    import jax

    keras.utils.set_random_seed(0)
    if arguments is None:
        layer = keras.layers.Dense(width)
    else:
        layer = kv.VariationalDense(width, num_examples=100, **arguments)
    model = keras.Sequential([keras.Input((width,)), layer])
    model.compile("adam", "mse", jit_compile=True)
    model.optimizer.build(model.trainable_variables)
    x = np.zeros((BATCH, width), "float32")
    model.train_on_batch(x, x)
    state = tuple(
        [variable.value for variable in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
    )
    spread = keras.distribution.distribution()
    layout = spread.get_data_layout(x.shape).backend_layout
    x = jax.device_put(x, layout)
    kept = jax.tree.map(lambda array: array.sharding, state)
    step = jax.jit(
        model.train_step, donate_argnums=0, out_shardings=(None, kept)
    )
    return step.lower(state, (x, x)).compile()


def measured(arguments, width):
    """Bytes of each device: kept, needed besides, and sent by operation."""
    program = compiled_step(arguments, width)
    memory = program.memory_analysis()
    sent = collections.Counter()
    for line in program.as_text().splitlines():
        match = re.search(rf"= (.*?) ({OPERATIONS})(?:-start)?\(", line)
        if match is None:
            continue
        for kind, sizes in re.findall(r"(\w+)\[([\d,]*)\]", match[1]):
            count = np.prod([int(size) for size in sizes.split(",") if size])
            sent[match[2]] += BYTES[kind] * int(count)
    return {
        "kept": memory.argument_size_in_bytes,
        "besides": memory.temp_size_in_bytes,
        **{f"sent by {name}": size for name, size in sent.items()},
    }


def rows(widths, only):
    for spread in data_parallel, model_parallel:
        keras.distribution.set_distribution(spread())
        for name in only or LAYERS:
            arguments = LAYERS[name]
            less, more = (measured(arguments, width) for width in widths)
            weights = widths[1] ** 2 - widths[0] ** 2
            found = {
                key: (more.get(key, 0) - less.get(key, 0)) / weights
                for key in {**less, **more}
            }
            yield spread.__name__, name, found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs=2, default=[1024, 2048])
    parser.add_argument("--only", nargs="*", help="names of layers")
    arguments = parser.parse_args()
    widths = arguments.widths
    if keras.backend.backend() != "jax":
        parser.error("`keras.distribution` needs KERAS_BACKEND=jax")
    import jax

    devices = keras.distribution.list_devices()
    print(f"jax {jax.__version__}, keras {keras.__version__}: {devices}")
    print("| devices | layer | kept | besides | sent | by |")
    print("| --- | --- | --- | --- | --- | --- |")
    for spread, name, found in rows(widths, arguments.only):
        sent = {
            key.removeprefix("sent by "): value
            for key, value in found.items()
            if key.startswith("sent") and value > 0.005
        }
        cells = [
            spread,
            name,
            f"{found['kept']:.2f}",
            f"{found['besides']:.2f}",
            f"{sum(sent.values()):.2f}",
            ", ".join(sorted(sent)),
        ]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
