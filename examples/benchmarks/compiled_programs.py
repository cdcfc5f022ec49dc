"""Counts of what a training step runs, for each backend."""

import importlib
import math
import re

import keras

# Instructions of XLA that launch nothing.
FREE = {
    "parameter",
    "constant",
    "iota",
    "bitcast",
    "tuple",
    "get-tuple-element",
    "after-all",
    "add-dependency",
    "opt-barrier",
    "copy-done",
    "async-done",
}
ENTRY = re.compile(r"^ENTRY .*?\{\n(.*?)^\}", re.S | re.M)
INSTRUCTION = re.compile(
    r"^ *(?:ROOT )?(%[\w.\-]+) = (.+?) ([\w\-]+)\((.*?)\)", re.M
)
ARRAY = re.compile(r"\b(?:pred|[a-z]+(\d+))\[([\d,]*)\]")
# The values of XLA's gpu/target_config/specs/a100_sxm_80.txtpb.
A100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 core_count: 108
  threads_per_core_limit: 2048 fpus_per_core: 64 clock_rate_ghz: 1.41
  shared_memory_per_block: 49152 shared_memory_per_core: 167936
  shared_memory_per_block_optin: 166912 registers_per_core_limit: 65536
  registers_per_block_limit: 65536 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 l2_cache_size: 41943040
  memory_bandwidth: 2039040000000 device_memory_size: 85100068864
  cuda_compute_capability { major: 8 }
}
platform_name: "CUDA" device_description_str: "NVIDIA A100-SXM4-80GB"
dnn_version_info { major: 9 minor: 8 } runtime_version { major: 12 minor: 9 }
"""


def on_jax(model, x, y, device):
    """Kernels of XLA, and the bytes that they read and write."""
    # Metrics and the optimizer as well.
    model._symbolic_build(data_batch=(x, y))
    state = tuple(
        [variable.value for variable in group]
        for group in (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
    )

    def step(state, data):
        with keras.StatelessScope():
            return model.train_step(state, data)

    # The step writes its results over the state.
    program = compiled(step, (state, (x, y)), device, donate_argnums=0)
    kernels = list(kernels_of(program.as_text()))
    return {
        "kernels": len(kernels),
        "moved_bytes": sum(kernels),
        "temporary_bytes": program.memory_analysis().temp_size_in_bytes,
    }


def compiled(function, arguments, device, **options):
    """Returns the program of a function for a device that need not be there."""
    import jax

    if device != "a100":
        return jax.jit(function, **options).lower(*arguments).compile()
    target, compiler_options = a100()
    jitted = jax.jit(
        function, in_shardings=target, out_shardings=target, **options
    )
    traced = jitted.trace(*jax.eval_shape(lambda *a: a, *arguments))
    lowered = traced.lower(lowering_platforms=("cuda",))
    return lowered.compile(compiler_options)


def programs_on_jax(run, device):
    """The same of all functions that the library compiles in `run()`.

    What Keras compiles does not count, nor copies from the host.
    """
    import jax

    from keras_vdrop import backend
    from keras_vdrop.models import sampling

    calls, jit = [], jax.jit

    def recording_jit(function, **options):
        jitted = jit(function, **options)

        def call(*arguments):
            shapes = jax.eval_shape(lambda *a: a, *arguments)
            calls.append((function, shapes))
            return jitted(*arguments)

        return call

    # Functions that were compiled before do not record.
    sampling._functions.clear()
    before = backend.compiled, jax.jit
    backend.compiled, jax.jit = recording_jit, recording_jit
    try:
        run()
    finally:
        backend.compiled, jax.jit = before
        sampling._functions.clear()
    programs = {}
    counts = {"programs": 0, "kernels": 0, "moved_bytes": 0}
    temporary = 0
    for function, shapes in calls:
        key = function, str(shapes)
        if key not in programs:
            program = compiled(function, shapes, device)
            programs[key] = list(kernels_of(program.as_text()))
            analysis = program.memory_analysis()
            temporary = max(temporary, analysis.temp_size_in_bytes)
        counts["programs"] += 1
        counts["kernels"] += len(programs[key])
        counts["moved_bytes"] += sum(programs[key])
    return {**counts, "temporary_bytes": temporary}


def prediction_on_jax(model, x, device):
    """The same of what `model.predict` runs for a batch."""
    state = tuple(
        [variable.value for variable in group]
        for group in (model.trainable_variables, model.non_trainable_variables)
    )

    def step(state, x):
        with keras.StatelessScope():
            return model.predict_step(state, (x,))

    program = compiled(step, (state, x), device)
    kernels = list(kernels_of(program.as_text()))
    return {
        "programs": 1,
        "kernels": len(kernels),
        "moved_bytes": sum(kernels),
        "temporary_bytes": program.memory_analysis().temp_size_in_bytes,
    }


def kernels_of(text):
    """Yields the bytes of operands and results of each kernel of a program."""
    sizes = {}
    for name, result, kind, operands in INSTRUCTION.findall(
        ENTRY.search(text)[1]
    ):
        sizes[name] = sum(
            math.prod(map(int, filter(None, shape.split(","))))
            * int(bits or 8)
            // 8
            for bits, shape in ARRAY.findall(result)
        )
        # A loop, such as that of random numbers on a CPU, counts once.
        if kind not in FREE:
            read = re.findall(r"%[\w.\-]+", operands)
            yield sizes[name] + sum(sizes[x] for x in read)


def a100():
    """Returns a sharding on an A100 that need not be there, and options."""
    import jax
    from jax.experimental import topologies

    try:
        importlib.import_module("jax_plugins.xla_cuda12")
        compiler = importlib.import_module("nvidia.cuda_nvcc")
    except ImportError as error:
        raise SystemExit(
            f"{error}. pip install jax-cuda12-pjrt=={jax.__version__} "
            "nvidia-cuda-nvcc-cu12"
        ) from error
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=A100, topology="1x1x1"
    )
    # Autotuning would time kernels.
    options = {
        "xla_gpu_autotune_level": 0,
        "xla_gpu_cuda_data_dir": list(compiler.__path__)[0],
    }
    target = jax.sharding.SingleDeviceSharding(topology.devices[0])
    return target, options


def on_tensorflow(model, x, y, device):
    """Operations of the graph, without those that have no work."""
    del device
    import tensorflow as tf

    model.train_on_batch(x, y)
    step = tf.function(model.train_step, autograph=False)
    graph = step.get_concrete_function(
        (tf.convert_to_tensor(x), tf.convert_to_tensor(y))
    ).graph
    free = {"Const", "Placeholder", "Identity", "NoOp", "ReadVariableOp"}
    kinds = [op.type for op in graph.get_operations()]
    return {"operations": sum(kind not in free for kind in kinds)}


def on_torch(model, x, y, device):
    """Operations that a step dispatches."""
    del device
    # The first step makes the variables of the optimizer.
    model.train_on_batch(x, y)
    return operations_on_torch(lambda: model.train_on_batch(x, y))


def operations_on_torch(run):
    """Operations that `run()` dispatches."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        number = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            # A view has no work.
            self.number += not func.is_view
            return func(*args, **(kwargs or {}))

    with Counter() as counter:
        run()
    return {"operations": counter.number}
