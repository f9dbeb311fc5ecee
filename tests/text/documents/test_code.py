"""Source code: what is a heading of what, and that the text is the file's."""

import time

import pytest
from helpers.document_checks import check, paths, shown
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.text.documents.code import read_code
from runnel.text.documents.reader import read_document
from runnel.text.reading import Decoded

PYTHON = '''"""A module."""
import re

@dataclass
class Pipeline:
    """Stages."""

    def search(
        self,
    ) -> list:
        def inner():
            return 1
        # a comment
        return inner()

    async def close(self):
        pass

TOP = 1
'''


def read(text):
    document = check(read_code(Decoded(text, "utf-8")))
    assert document.text == text.replace("\r\n", "\n") and document.kind == "code"
    return document


def test_python_where_a_definition_begins_a_block_and_a_blank_line_ends_one(tmp_path):
    (tmp_path / "a.py").write_text(PYTHON)
    document = read(PYTHON)
    assert read_document(tmp_path / "a.py") == document
    for headings, starts in {
        (): ("import re", "@dataclass", "TOP"),
        ("Pipeline",): ("class Pipeline", '"""Stages'),
        ("Pipeline", "search"): ("def search",),
        ("Pipeline", "search", "inner"): ("def inner",),
        ("Pipeline", "close"): ("async def", "pass"),
    }.items():
        assert {document.block_at(document.text.index(start)).headings for start in starts} == {headings}
    assert {kind for kind, _ in shown(document)} == {"code"}
    assert ("code", '"""A module."""\nimport re') in shown(document)
    blocks = [text for _, text in shown(read("a = 1\nb = 2\ndef f():\n    pass\n\n\n  \nc = 3\r\n"))]
    assert blocks == ["a = 1\nb = 2", "def f():\n    pass", "c = 3"]
    assert shown(read("")) == [] == shown(read(" \n\t\n"))
    assert shown(read("x")) == [("code", "x")]


@pytest.mark.parametrize(
    ("text", "inner", "headings"),
    [
        ("struct Row {\n}\nimpl<T> Show for Row<T> {\n  pub(crate) fn show() {\n    x\n", "x", ("Show for Row", "show")),
        ("func (r *Row) Name(a int) string {\n\treturn a\n}\n", "return", ("Name",)),
        ("export default class App {\n  static async function* go() {\n    here\n", "here", ("App", "go")),
        ("export const add = async (a, b) => {\n  here\n};\n", "here", ("add",)),
        ("namespace a::b {\n  template <class T>\n  enum Kind { here\n", "here", ("a::b", "Kind")),
        ("module Shop\n  class Cart\n    def empty?\n      here\n    end\n  end\nend\n", "here", ("Shop", "Cart", "empty?")),
        ("public final class Cart {\n    private int count() {\n        here\n", "here", ("Cart",)),  # a method without a keyword
        ("function f()\n  here\nend\nx\n", "x", ()),
        ("definitely = 1\nclassify(x)\n", "classify", ()),
    ],
)
def test_other_languages(text, inner, headings):
    document = read(text)
    assert paths(document) and document.blocks[-1].end <= len(text)
    assert document.block_at(document.text.index(inner)).headings == headings


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("def class f(x):\n\t {}=>\r#end"), max_size=80))
def test_any_text(text):
    check(read_code(Decoded(text, "utf-8")))


def test_hostile_lines_take_no_time():
    start = time.process_time()
    for line in ("export " * 60_000, "impl<" * 80_000, "const a = (" * 40_000, "def " + "a." * 200_000, "func (" + "(" * 400_000):
        read(line)
    assert time.process_time() - start < 5
