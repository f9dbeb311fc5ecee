"""A report: the page with a query, its results and the documents, in one file that fetches nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

# The modules of a report, each after the modules that it imports.
_MODULES = ("offsets", "address", "document", "strip", "results", "picture", "keys", "drop", "pane", "app", "report")
_IMPORT = re.compile(r"^import .*\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)
_HEAD = re.compile(r'<link rel="icon".*?</script>\n', re.DOTALL)


def write_report(query: str, scope: str, hits: Sequence[Mapping[str, Any]], documents: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the report as HTML.

    A content security policy allows only the report's own script and style, by their hashes. All texts of documents are in a
    block of JSON, which browsers do not run.

    Args:
        scope: where the query was asked, for the reader.
        hits: as the page's search returns them: documents with their answering sentences.
        documents: by the hits' ids: `document_view`, with `answers`, `id`, `name` and `title`.
    """
    static = files("runnel.server") / "static"
    script = "".join(_inlined((static / f"{name}.js").read_text(encoding="utf-8")) for name in _MODULES)
    style = (static / "page.css").read_text(encoding="utf-8")
    held = json.dumps({"query": query, "scope": scope, "hits": hits, "documents": documents}).replace("<", "\\u003c")
    policy = f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; base-uri 'none'; form-action 'none'"
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
        f'<style>{style}</style>\n<script type="application/json" id="held">{held}</script>\n'
        f'<script type="module">{script}</script>\n'
    )
    page = (static / "index.html").read_text(encoding="utf-8")
    return _HEAD.sub(lambda _: head, page, count=1)


def _inlined(module: str) -> str:
    """Return a module as part of a script that holds all of them."""
    return _EXPORT.sub("", _IMPORT.sub("", module))


def _source(text: str) -> str:
    """Return the hash by which a content security policy allows a script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
