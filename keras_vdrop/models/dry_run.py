"""How large a model of a config is, before any of it is allocated."""

import copy
import threading
from typing import Any

import keras

from keras_vdrop.coding.errors import DamagedFile


def check_size(config: Any, custom_objects: Any, limit: int) -> None:
    """Refuses a config whose variables need more bytes than a limit.

    The model is built with variables that have shapes and no values.
    """
    errors: list[Exception] = []
    # What Keras notes about variables without values belongs to a thread, and
    # ends with it.
    thread = threading.Thread(
        target=_build, args=(config, custom_objects, limit, errors)
    )
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def _build(
    config: Any, custom_objects: Any, limit: int, errors: list[Exception]
) -> None:
    try:
        with keras.StatelessScope(initialize_variables=False):
            model = keras.saving.deserialize_keras_object(
                # Keras takes parts out of it (3.15, models/functional.py).
                copy.deepcopy(config),
                custom_objects=custom_objects,
                safe_mode=True,
            )
            variables = list(model.variables)
    except Exception as error:
        errors.append(DamagedFile(f"Its model cannot be built: {error}"))
        return
    size = sum(_bytes(variable) for variable in variables)
    if size > limit:
        errors.append(
            DamagedFile(
                f"Its model needs {size:,} bytes, and a file of its size can "
                f"have {limit:,}."
            )
        )


def _bytes(variable: Any) -> int:
    size = 1
    for length in variable.shape:
        size *= int(length)
    # At most eight bytes each.
    wide = str(variable.dtype).endswith("64")
    return size * (8 if wide else 4)
