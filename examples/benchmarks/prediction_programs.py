"""What does `keras_vdrop.predict` run on an accelerator? Its kernels and bytes.

    KERAS_BACKEND=jax python examples/benchmarks/prediction_programs.py

XLA compiles for an NVIDIA A100, which need not be there, with packages that the
error names, all programs that 32 samples of a batch take. Kernels, and the
bytes that they read and write, are counted; nothing is timed. Beside them
stands one call of `model.predict` without noise, for comparison. On torch the
operations are counted that it dispatches, for samples one after the other too.

The counts are appended to a CSV file. Those in the file are not counted again.
"""

import contextlib
import os
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # For `shared`.
# With another platform the plugin looks for a driver.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from prediction import NETWORKS
from shared.options import new_parser
from shared.results import Results
from shared.results import versions

WAYS = {"jax": ("at once", "plain"), "torch": ("at once", "in turn")}


def build(network):
    """Returns a network of `prediction.NETWORKS` with our layers."""
    import keras_vdrop

    layers = keras_vdrop.VariationalDense, keras_vdrop.VariationalConv2D
    return NETWORKS[network](*layers)


@contextlib.contextmanager
def on_accelerator(is_one):
    """Has the library take the device for an accelerator, or not."""
    from keras_vdrop import backend

    before = backend.is_accelerator
    backend.is_accelerator = lambda variable: is_one
    try:
        yield
    finally:
        backend.is_accelerator = before


def count(model, x, samples, sampling, way, device="a100"):
    """Returns what `predict` runs, by name."""
    import keras

    import compiled_programs
    import keras_vdrop

    def predict():
        keras_vdrop.predict(
            model,
            x,
            num_samples=samples,
            batch_size=len(x),
            from_logits=True,
            sampling=sampling,
            verbose=0,
        )

    if way == "plain":
        return compiled_programs.prediction_on_jax(model, x, device)
    with on_accelerator(way == "at once"):
        predict()  # Builds what there is to build.
        if keras.backend.backend() == "torch":
            return compiled_programs.operations_on_torch(predict)
        return compiled_programs.programs_on_jax(predict, device)


def main():
    parser = new_parser(__doc__)
    option = parser.add_argument
    option("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    option("--batch-sizes", nargs="+", type=int, default=[32, 1024])
    option("--samples", type=int, default=32)
    option("--out", help="CSV file; programs_prediction_BACKEND.csv")
    options = parser.parse_args()
    import keras

    from shared.data import random_images

    backend = keras.backend.backend()
    if backend not in WAYS:
        parser.error(f"there is no count for {backend}")
    results = Results(options.out or f"programs_prediction_{backend}.csv")
    for network in options.networks:
        for batch_size in options.batch_sizes:
            for sampling in ("weights", "local"):
                for way in WAYS[backend]:
                    settings = {
                        "network": network,
                        "batch_size": batch_size,
                        "samples": options.samples,
                        "sampling": sampling,
                        "way": way,
                    }
                    if results.select(**settings):
                        continue
                    model = build(network)
                    shape = model.input_shape[1:]
                    x, _ = random_images(batch_size, shape)
                    counts = count(model, x, options.samples, sampling, way)
                    results.append({**settings, **counts, **versions()})
                    told = [f"{name} {n}" for name, n in counts.items()]
                    print(*settings.values(), *told, sep=", ", flush=True)


if __name__ == "__main__":
    main()
