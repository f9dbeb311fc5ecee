"""Notebooks: text, code and short outputs."""

import json

import pytest
from helpers.document_checks import check, shown
from helpers.texts import repeat

from runnel.files import Decoded
from runnel.text.documents.notebook import read_notebook

ENCODED = repeat("iVBORw0KGgoAAAANSUhEUg9x", 20)


def read(notebook):
    text = notebook if isinstance(notebook, str) else json.dumps(notebook)
    return check(read_notebook(Decoded(text, "utf-8")))


def test_cells_are_blocks_below_the_headings_of_cells_above():
    outputs = [
        {"output_type": "stream", "text": ["kept 812 rows\n", "\x1b[1mdone\x1b[0m"]},
        {"output_type": "display_data", "data": {"image/png": ENCODED, "text/plain": "<Figure>"}},
        {"output_type": "execute_result", "data": {"text/plain": ENCODED}},
        {"output_type": "execute_result", "data": {"text/plain": ["line\n"] * 1000}},
        {"output_type": "error", "ename": "ValueError", "evalue": "bad", "traceback": ["x"]},
    ]
    document = read(
        {
            "nbformat": 4,
            "cells": [
                {"cell_type": "markdown", "source": ["# Cleaning\n", "Rows are\n", "dropped."]},
                {"cell_type": "code", "source": "df = 1", "outputs": outputs},
                {"cell_type": "raw", "source": "raw words"},
            ],
        }
    )
    found = shown(document)
    assert document.title == "Cleaning" and document.kind == "ipynb"
    assert found[:4] == [
        ("heading", "# Cleaning"),
        ("paragraph", "Rows are\ndropped."),
        ("code", "df = 1"),
        ("code", "kept 812 rows\ndone"),
    ]
    assert found[-2:] == [("code", "ValueError: bad"), ("paragraph", "raw words")]
    assert {block.headings for block in document.blocks} == {("Cleaning",)}
    assert len(document.text) < 2500 and "<Figure>" not in document.text
    assert len(document.warnings) == 3 and all(": 1" in warning for warning in document.warnings)


def test_other_versions():
    cells = [
        {"cell_type": "heading", "level": 2, "source": "Study"},
        {"cell_type": "code", "input": ["x = 1\n", "y"], "outputs": [{"text": "812"}]},
        {"cell_type": "code", "input": "plot()", "outputs": [{"png": ENCODED}]},
    ]
    document = read({"nbformat": 3, "worksheets": [{"cells": cells}]})
    assert shown(document) == [
        *(("heading", "## Study"), ("code", "x = 1\ny"), ("code", "812"), ("code", "plot()")),
    ]
    assert len(document.warnings) == 1
    document = read({"nbformat": 9, "cells": [{"cell_type": "markdown", "source": "words"}]})
    assert shown(document) == [("paragraph", "words")] and "9" in document.warnings[0]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"cells": 3}', '{"worksheets": [1]}', repeat("[", 10**5)]
)
def test_what_is_no_notebook_is_plain_text(text):
    document = read(text)
    assert (document.kind, document.text) == ("txt", text) and document.warnings
    odd = {"cells": [1, {}, {"source": [1, "a"], "outputs": [3, {"data": {"text/plain": 7}}]}]}
    assert shown(read(odd)) == [("paragraph", "a")]


def test_outputs_of_pages_and_markdown():
    table = "<table><tr><th>Pump</th><th>Bar</th></tr><tr><td>P-7</td><td>9</td></tr></table>"
    data = [
        {"text/html": f"<style>td {{}}</style>{table}", "text/plain": "  Pump Bar"},
        {"text/html": "<p>The mean is 9.</p>", "text/plain": "<IPython.core.display.HTML object>"},
        {"text/html": "<b>7</b>", "text/plain": "7"},
        {"text/markdown": ["**Nine** pumps."], "text/plain": "<IPython.core.display.Markdown>"},
    ]
    outputs = [{"output_type": "display_data", "data": one} for one in data]
    cells = [{"cell_type": "code", "source": "x", "outputs": outputs}]
    assert shown(read({"nbformat": 4, "cells": cells})) == [
        ("code", "x"),
        ("heads", "Pump | Bar"),
        ("row", "P-7 | 9"),
        ("paragraph", "The mean is 9."),
        ("code", "7"),
        ("paragraph", "**Nine** pumps."),
    ]
