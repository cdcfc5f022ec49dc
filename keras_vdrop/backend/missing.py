"""What to install, for one who has Keras and no backend of it."""

import importlib.util

BACKENDS = ("jax", "tensorflow", "torch")


def backend_of(error: ImportError) -> str | None:
    """The backend that is not installed, or `None` for any other error."""
    name = (error.name or "").partition(".")[0]
    if name in BACKENDS and importlib.util.find_spec(name) is None:
        return name
    return None


def message(name: str) -> str:
    """Says how to get the backend that Keras did not find, or another.

    Args:
        name: String, the backend.
    """
    installed = [x for x in BACKENDS if importlib.util.find_spec(x)]
    if installed:
        return (
            f"Keras uses the backend '{name}', which is not installed. "
            f"Installed: {', '.join(installed)}. Set the environment variable "
            f"KERAS_BACKEND={installed[0]} before Keras is imported, or "
            f'install the other: pip install "keras-vdrop[{name}]"'
        )
    commands = "\n".join(
        f'    pip install "keras-vdrop[{x}]"' for x in BACKENDS
    )
    return (
        f"Keras uses the backend '{name}', which is not installed. Install "
        f"one of these:\n\n{commands}\n\nand set the environment variable "
        "KERAS_BACKEND to its name, for example KERAS_BACKEND=jax."
    )
