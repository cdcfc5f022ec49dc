"""The public names, read from the sources without importing them."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
# Public modules, and the files that list their names.
MODULES = {
    "keras_vdrop": "keras_vdrop/__init__.py",
    "keras_vdrop.layers": "keras_vdrop/layers/__init__.py",
    "keras_vdrop.callbacks": "keras_vdrop/callbacks/__init__.py",
    "keras_vdrop.losses": "keras_vdrop/core/losses.py",
    "keras_vdrop.metrics": "keras_vdrop/diagnostics/metrics.py",
    "keras_vdrop.priors": "keras_vdrop/core/priors.py",
    "keras_vdrop.divergence": "keras_vdrop/core/divergence.py",
}


def public_names(module):
    """The names in `__all__`, without modules and without repetitions."""
    found = names_in(MODULES[module])
    if module == "keras_vdrop":
        return [x for x in found if f"keras_vdrop.{x}" not in MODULES]
    shown_before = names_in(MODULES["keras_vdrop"])
    return [x for x in found if x not in shown_before]


def names_in(path):
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__":
            return ast.literal_eval(node.value)
    raise ValueError(f"{path} has no __all__")


def dotted(module, name):
    """Where the definition is: a static reader follows no attributes."""
    if module in ("keras_vdrop", "keras_vdrop.layers", "keras_vdrop.callbacks"):
        return f"{module}.{name}"
    return MODULES[module].removesuffix(".py").replace("/", ".") + f".{name}"
