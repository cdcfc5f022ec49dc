"""What a notebook shows of a summary and of predictions."""

import html.parser
import types

import keras
import numpy as np
import pytest

import keras_vdrop
from keras_vdrop.core import notebook


class Cells(html.parser.HTMLParser):
    """Collects the cells of the rows, and checks that all tags are closed."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.open = [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def model_of(*layers):
    return keras.Sequential([keras.Input((3,)), *layers], name="small")


def test_summary_has_the_cells_that_are_printed(capsys):
    model = model_of(
        keras_vdrop.VariationalDense(4, rate=0.2, name="first"),
        keras_vdrop.VariationalDropout(0.3, adaptive=False, name="second"),
    )
    found = keras_vdrop.summary(model)
    printed = capsys.readouterr().out
    assert printed == f"{found}\n"
    assert repr(found) == '<Summary of "small": 2 rows>'
    headings, *rows = Cells(found._repr_html_()).rows
    assert len(headings) == 9 and all(headings)
    assert [row[0] for row in rows] == ["first", "second", "Total"]
    for row in rows:
        line = next(x for x in printed.splitlines() if x.startswith(row[0]))
        assert line.split() == [cell for cell in row if cell]


def test_summary_of_a_model_that_is_not_built():
    model = keras.Sequential([keras_vdrop.VariationalDense(2)])
    found = keras_vdrop.summary(model, print_fn=lambda line: None)
    rows = Cells(found._repr_html_()).rows
    assert len({len(row) for row in rows}) == 1 and rows[1][3] == "not built"


def test_a_notebook_shows_the_table_once(monkeypatch, capsys):
    shown = []
    kernel = types.SimpleNamespace(execution_count=1)
    monkeypatch.setattr(notebook, "kernel", lambda: kernel)
    monkeypatch.setattr(notebook, "show", lambda *x: shown.append(x))
    model = model_of(keras_vdrop.VariationalDense(4))
    found = keras_vdrop.summary(model)
    assert shown == [(str(found), found._repr_html_())]
    found._ipython_display_()  # The end of the same cell.
    assert len(shown) == 1 and not capsys.readouterr().out
    kernel.execution_count = 2
    found._ipython_display_()
    assert len(shown) == 2
    lines = []
    keras_vdrop.summary(model, print_fn=lines.append)
    assert lines == found.lines and len(shown) == 2


def test_text_is_no_markup():
    text = notebook.table("a<b", ["c<d"], [["e<f"]])
    assert Cells(text).rows == [["c<d"], ["e<f"]]
    assert text.count("&lt;") == 3


def test_no_notebook_here():
    assert notebook.kernel() is None


@pytest.mark.parametrize("from_logits", [None, True])
def test_predictions(from_logits):
    model = model_of(keras_vdrop.VariationalDense(6, rate=0.3))
    found = keras_vdrop.predict(
        model,
        np.ones((20, 3)),
        num_samples=3,
        from_logits=from_logits,
        verbose=0,
    )
    assert repr(found) == "<Predictions: mean (20, 6), 3 samples>"
    headings, *rows = Cells(found._repr_html_()).rows
    assert headings[:3] == ["example", "mean", "std"]
    assert len(headings) == (3 if from_logits is None else 5)
    assert len(rows) == 9 and rows[-1][0] == "…"
    means = [float(x) for x in rows[2][1].split(", ")[:-1]]
    np.testing.assert_allclose(means, found.mean[2, :4], rtol=1e-2)
    if from_logits:
        np.testing.assert_allclose(
            float(rows[2][3]), found.entropy[2], rtol=1e-2
        )


def test_predictions_of_several_outputs():
    inputs = keras.Input((3,))
    outputs = {
        name: keras_vdrop.VariationalDense(units)(inputs)
        for name, units in (("one", 1), ("two", 2))
    }
    model = keras.Model(inputs, outputs)
    found = keras_vdrop.predict(model, np.ones((2, 3)), 2, verbose=0)
    assert "'two': (2, 2)" in repr(found)
    assert found._repr_html_().count("<table>") == 2
