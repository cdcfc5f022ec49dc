"""Pictures, which are left out if matplotlib is not installed."""

import os


def draw(path, size, paint, dpi=150):
    """Saves a picture.

    Args:
        path: File to write.
        size: Width and height in inches.
        paint: Function that draws on an empty `matplotlib.figure.Figure`.
        dpi: Pixels per inch.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"No {path} without matplotlib: pip install matplotlib")
        return
    figure = Figure(figsize=size, layout="constrained")
    paint(figure)
    save(figure, path, dpi)


def save(figure, path, dpi=150):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    figure.savefig(path, dpi=dpi)
    print(f"Drew {path}")


def beside(path, ending):
    """Returns the path of a file next to another, with another ending."""
    return os.path.splitext(path)[0] + ending
