"""Docstrings and signatures agree."""

import importlib
import inspect
import pkgutil
import re

import pytest

import keras_vdrop

PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (
        keras_vdrop,
        keras_vdrop.layers,
        keras_vdrop.callbacks,
        keras_vdrop.losses,
        keras_vdrop.metrics,
        keras_vdrop.priors,
        keras_vdrop.divergence,
    )
    for name in module.__all__
    if not inspect.ismodule(getattr(module, name))
}


def parameters(function):
    """The names as a docstring has them, in the order of the signature."""
    stars = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    if inspect.isclass(function) and function.__init__ is object.__init__:
        return []
    return [
        stars.get(parameter.kind, "") + parameter.name
        for parameter in inspect.signature(function).parameters.values()
    ]


def documented(function):
    """The names in the section "Args:", or `None` if there is none."""
    text = inspect.cleandoc(function.__doc__ or "")
    section = re.search(r"^Args:\n(.*?)(?:\n\n|\Z)", text, re.S | re.M)
    if section is None:
        return None
    lines = re.findall(r"^    (\S.*?):", section[1], re.M)
    return [name for names in lines for name in names.split(", ")]


def with_a_section():
    """All functions and classes of the package that document arguments."""
    for module in pkgutil.walk_packages(
        keras_vdrop.__path__, prefix="keras_vdrop."
    ):
        # A backend that is not installed cannot be imported.
        if module.name.startswith("keras_vdrop.backend."):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if getattr(value, "__module__", None) != module.name:
                continue
            members = vars(value) if inspect.isclass(value) else {}
            for member in (value, *members.values()):
                if inspect.isroutine(member) or inspect.isclass(member):
                    if documented(member) is not None:
                        where = f"{module.name}.{name}"
                        yield pytest.param(
                            member, id=f"{where}:{member.__name__}"
                        )


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_argument_is_documented(name):
    assert PUBLIC[name].__doc__
    assert (documented(PUBLIC[name]) or []) == parameters(PUBLIC[name])


@pytest.mark.parametrize("function", list(with_a_section()))
def test_what_is_documented_is_in_the_signature(function):
    names = [x for x in parameters(function) if x not in ("self", "cls")]
    found = documented(function)
    # Arguments that a subclass of Keras hands on need no words.
    assert found == [name for name in names if name in found]
    assert set(names) - set(found) <= {"**kwargs"}
