"""Runs the tests once for each backend that is installed.

    python tests/run.py [--all] [arguments of pytest]

With `KERAS_BACKEND` set, for that backend alone. Slow tests run with `--all`.
"""

import importlib.util
import os
import subprocess
import sys

INSTALLED = [
    name
    for name in ("tensorflow", "jax", "torch")
    if importlib.util.find_spec(name)
]
# There are two workers, and what they compile is larger than what they compute.
QUICK = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
}


def main(arguments):
    chosen = os.environ.get("KERAS_BACKEND")
    backends = [chosen] if chosen else INSTALLED
    if not backends:
        return 'No backend is installed: pip install -e ".[tensorflow,jax]"'
    if "--all" in arguments:
        arguments = [x for x in arguments if x != "--all"]
    else:
        arguments = ["-m", "not slow", *arguments]
    failed = []
    for backend in backends:
        print(f"\n=== {backend} ===", flush=True)
        code = subprocess.call(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
            env={**QUICK, **os.environ, "KERAS_BACKEND": backend},
        )
        if code:
            failed.append(backend)
    if failed:
        return f"Failed on {', '.join(failed)}."
    print(f"\nPassed on {', '.join(backends)}.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
