"""Tables in a notebook."""

import html
import sys
from collections.abc import Sequence
from typing import Any

RIGHT = ' style="text-align: right"'
LEFT = ' style="text-align: left"'


def table(
    caption: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    words: int = 1,
) -> str:
    """A table in HTML. It has no colours: those of the notebook suit it.

    Args:
        caption: String, a line above the table.
        headings: Strings, one for each column.
        rows: A sequence of strings for each row. Short ones are filled up.
        words: Integer, how many columns on the left hold words. The others
            hold numbers.
    """

    def row(cells: Sequence[str], tag: str) -> str:
        cells = [*cells, *[""] * (len(headings) - len(cells))]
        return "".join(
            f"<{tag}{LEFT if i < words else RIGHT}>{html.escape(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in rows)
    return (
        f"<p>{html.escape(caption)}</p><table><thead><tr>"
        f"{row(headings, 'th')}</tr></thead><tbody>{body}</tbody></table>"
    )


def kernel() -> Any:
    """The running notebook, or `None` in any other program."""
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None


def show(text: str, rich: str) -> None:
    """Shows something in the running notebook."""
    display = sys.modules["IPython"].display.display
    display({"text/plain": text, "text/html": rich}, raw=True)
