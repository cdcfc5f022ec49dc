"""Products with mostly-zero kernels: dense or sparse?

    KERAS_BACKEND=torch python examples/benchmarks/sparse_kernels.py

This program multiplies random inputs with kernels that are mostly zeros, as
pruning leaves them in `Dense` layers. It compares the dense product with the
sparse ones that the backend has, at inference, compiled where the backend
compiles. All take turns, on one thread. The ratios are appended to a CSV file.
"""

import pathlib
import sys

import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # For `shared`.

from shared.options import new_parser
from shared.results import Results
from shared.results import versions
from shared.timing import alternate
from shared.timing import compare
from shared.timing import limit_threads
from shared.timing import show

# Inputs, outputs, and the share of the weights that are not zero.
KERNELS = [
    (784, 300, 0.02),
    (1024, 1024, 0.01),
    (1024, 1024, 0.05),
    (4096, 4096, 0.01),
    (4096, 4096, 0.05),
]
BATCH_SIZES = (1, 256)


def jax_products(x, kernel):
    import jax
    from jax.experimental import sparse

    x, dense = jax.numpy.asarray(x), jax.numpy.asarray(kernel)
    coordinates = sparse.BCOO.fromdense(dense)
    rows = sparse.BCSR.fromdense(dense.T)
    product = jax.jit(lambda x, kernel: x @ kernel)
    of_rows = jax.jit(lambda x, kernel: (kernel @ x.T).T)
    return {
        "dense": lambda: product(x, dense).block_until_ready(),
        "BCOO": lambda: product(x, coordinates).block_until_ready(),
        "BCSR": lambda: of_rows(x, rows).block_until_ready(),
    }


def tensorflow_products(x, kernel):
    import tensorflow as tf

    x, dense = tf.constant(x), tf.constant(kernel)
    rows = tf.sparse.from_dense(kernel.T)

    def sparse(x):
        found = tf.sparse.sparse_dense_matmul(rows, x, adjoint_b=True)
        return tf.transpose(found)

    product, sparse = tf.function(lambda x: x @ dense), tf.function(sparse)
    return {
        "dense": lambda: product(x).numpy(),
        "SparseTensor": lambda: sparse(x).numpy(),
    }


def torch_products(x, kernel):
    import torch

    torch.set_num_threads(1)
    x, dense = torch.tensor(x), torch.tensor(kernel)
    rows = dense.T.contiguous().to_sparse_csr()
    return {
        "dense": lambda: x @ dense,
        "CSR": lambda: (rows @ x.T).T.contiguous(),
    }


PRODUCTS = {
    "jax": jax_products,
    "tensorflow": tensorflow_products,
    "torch": torch_products,
}


def random_kernel(generator, inputs, outputs, share):
    kernel = generator.normal(size=(inputs, outputs)).astype("float32")
    return kernel * (generator.random(kernel.shape) < share)


def main():
    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--largest", type=int, default=4096)
    parser.add_argument("--out", default="sparse_kernels.csv")
    options = parser.parse_args()
    limit_threads(1)
    import keras

    generator = np.random.default_rng(0)
    for inputs, outputs, share in KERNELS:
        for batch_size in BATCH_SIZES:
            if inputs > options.largest:
                continue
            x = generator.normal(size=(batch_size, inputs)).astype("float32")
            kernel = random_kernel(generator, inputs, outputs, share)
            products = PRODUCTS[keras.backend.backend()](x, kernel)
            for product in products.values():
                np.testing.assert_allclose(product(), x @ kernel, atol=1e-3)
            rows = compare(alternate(products, options.rounds), "dense")
            print(f"\n{inputs} x {outputs}, {share:.0%}, batch {batch_size}")
            show(rows, "dense")
            for name, row in rows.items():
                settings = {
                    "product": name,
                    "inputs": inputs,
                    "outputs": outputs,
                    "share": share,
                    "batch_size": batch_size,
                }
                Results(options.out).append({**settings, **row, **versions()})


if __name__ == "__main__":
    main()
