"""Read Jupyter notebooks (nbformat 4): Markdown as Markdown, code, and short text outputs."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from runnel.files import Decoded
from runnel.text.documents.document import Canonical, DocumentText, read_plain
from runnel.text.documents.markdown import add_markdown
from runnel.text.documents.unread import is_data

_VERSION = 4
_LONGEST = 2000  # characters of an output
_PICTURE = re.compile(r"image/|(?:png|jpeg|svg)\Z|application/(?:pdf|vnd|javascript)")


def read_notebook(decoded: Decoded) -> DocumentText:
    """Read a notebook; what is none is read as plain text, with a warning."""
    try:
        notebook = json.loads(decoded.text)
        cells = [cell for cell in notebook["cells"] if isinstance(cell, dict)]
    except (ValueError, TypeError, KeyError, RecursionError):
        return read_plain(decoded, "not a notebook with cells; read as plain text")
    canonical = Canonical(decoded.warning)
    version = notebook.get("nbformat")
    if version != _VERSION:
        canonical.warnings.append(
            f"a notebook of version {version!r}, read like version 4: parts may be missing"
        )
    title: str | None = None
    left_out: Counter[str] = Counter()
    for cell in cells:
        kind = cell.get("cell_type")
        source = _joined(cell.get("source"))
        if kind == "markdown":
            found = add_markdown(canonical, source)
            title = title or found
        else:
            canonical.add(source, "code" if kind == "code" else "paragraph")
        outputs = cell.get("outputs")
        for output in outputs if isinstance(outputs, list) else ():
            if isinstance(output, dict):
                canonical.add(_output(output, left_out), "code")
    canonical.warnings += [f"{what}: {count:,}" for what, count in left_out.items()]
    return canonical.finish("ipynb", title=title, encoding=decoded.encoding)


def _joined(value: Any) -> str:
    """Return a text, which may be stored as a list of its lines."""
    lines = value if isinstance(value, list) else [value]
    return "".join(line for line in lines if isinstance(line, str))


def _output(output: dict[str, Any], left_out: Counter[str]) -> str:
    """Return an output as text, and count what is left out of it."""
    if "ename" in output:
        return f"{output['ename']}: {output.get('evalue')}"
    data = output.get("data")
    data = data if isinstance(data, dict) else output
    if any(map(_PICTURE.match, data)):
        left_out["outputs with pictures or programs are not read"] += 1
        return ""
    text = _joined(data.get("text/plain", data.get("text")))
    if is_data(text):
        left_out["outputs of encoded data (base64) are not read"] += 1
        return ""
    if len(text) > _LONGEST:
        left_out[f"outputs of which only the first {_LONGEST:,} characters are read"] += 1
        text = text[:_LONGEST].rpartition("\n")[0] or text[:_LONGEST]
    return text
