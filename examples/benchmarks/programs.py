"""What does a training step run? Its operations, and the bytes they move.

    KERAS_BACKEND=jax python examples/benchmarks/programs.py
    KERAS_BACKEND=jax python examples/benchmarks/programs.py --device a100

This program counts, and times nothing: a count does not depend on how busy the
machine is. On JAX it counts the kernels of the compiled step and the bytes that
they read and write, on TensorFlow the operations of its graph, on torch the
operations that it dispatches. With `--device a100` XLA compiles for an NVIDIA
A100, which need not be there, with packages that the error names.

The counts are appended to a CSV file. Those in the file are not counted again.
"""

import os
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # For `shared`.

from benchmark import MODELS
from shared.options import new_parser
from shared.results import Results
from shared.results import versions


def build(name, widths, inputs):
    """Returns a compiled model of `MODELS`."""
    from shared.networks import dense_network
    from shared.training import compile_classifier

    method, noise = MODELS[name]
    model = dense_network(method, (inputs,), widths, noise)
    compile_classifier(model, 60_000, "adam")
    return model


def count(model, x, y, device="cpu"):
    """Returns what a training step runs, by name."""
    import keras

    import compiled_programs

    function = getattr(compiled_programs, f"on_{keras.backend.backend()}")
    return function(model, x, y, device)


def main():
    parser = new_parser(__doc__)
    parser.add_argument("--widths", nargs="+", type=int, default=[1024] * 3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--device", choices=("cpu", "a100"), default="cpu")
    parser.add_argument(
        "--models", nargs="+", default=list(MODELS), choices=list(MODELS)
    )
    parser.add_argument("--out", help="CSV file; programs_BACKEND_DEVICE.csv")
    options = parser.parse_args()
    if options.device == "a100":
        # With another platform the plugin looks for a driver.
        os.environ["JAX_PLATFORMS"] = "cpu"
    import keras

    from shared.data import random_images

    backend = keras.backend.backend()
    if options.device == "a100" and backend != "jax":
        parser.error("--device a100 needs KERAS_BACKEND=jax")
    x, y = random_images(options.batch_size, (784,))
    out = options.out or f"programs_{backend}_{options.device}.csv"
    results = Results(out)
    for name in options.models:
        settings = {
            "device": options.device,
            "model": name,
            "widths": " ".join(map(str, options.widths)),
            "batch_size": options.batch_size,
        }
        rows = results.select(**settings)
        if not rows:
            model = build(name, options.widths, x.shape[-1])
            counts = count(model, x, y, options.device)
            results.append({**settings, **counts, **versions()})
            rows = results.select(**settings)
        told = [f"{key} {value}" for key, value in rows[0].items()]
        print(f"{name}: {', '.join(told[4:-4])}", flush=True)


if __name__ == "__main__":
    main()
