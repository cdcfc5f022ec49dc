"""Pictures, with matplotlib where it is installed."""

from typing import Any


def new_figure(function: str, **options: Any) -> Any:
    """A figure for the public function of this name."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"`{function}` draws with matplotlib. Install it: "
            "pip install matplotlib"
        ) from error
    return Figure(layout="constrained", **options)
