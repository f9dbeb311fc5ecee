"""Read Jupyter notebooks (nbformat 3 and 4): Markdown as Markdown, code, and short outputs; tables
of outputs as tables.
"""

import json
import re
from collections import Counter

from runnel.files import Decoded
from runnel.text.documents.document import Canonical, DocumentText, read_plain
from runnel.text.documents.html import add_page
from runnel.text.documents.markdown import add_markdown
from runnel.text.documents.unread import is_data

_VERSIONS = (3, 4)
_MOST_CHARS = 2000  # of an output
# kinds of outputs: "image/png", in version 3 "png"
_PICTURE = re.compile(r"image/|(?:png|jpeg|svg)\Z|application/(?:pdf|vnd|javascript)")


def read_notebook(decoded: Decoded) -> DocumentText:
    """Read a notebook; what is none is read as plain text, with a warning."""
    try:
        notebook = json.loads(decoded.text)
        # those of version 3 are in sheets
        sheets = notebook["worksheets"] if "worksheets" in notebook else [notebook]
        cells = [cell for sheet in sheets for cell in sheet["cells"] if isinstance(cell, dict)]
    except (ValueError, TypeError, KeyError, RecursionError):
        return read_plain(decoded, "not a notebook with cells; read as plain text")
    canonical = Canonical(decoded.warning)
    version = notebook.get("nbformat")
    if version not in _VERSIONS:
        canonical.warnings.append(
            f"a notebook of version {version!r}, read like version 4: parts may be missing"
        )
    title: str | None = None
    left_out: Counter[str] = Counter()
    for cell in cells:
        kind = cell.get("cell_type")
        source = _joined(cell.get("source", cell.get("input")))
        if kind == "heading":
            level = cell.get("level")
            level = level if isinstance(level, int) and level in range(1, 7) else 1
            source = f"{'#' * level} {source}"
        if kind in ("markdown", "heading"):
            found = add_markdown(canonical, source)
            title = title or found
        else:
            canonical.add(source, "code" if kind == "code" else "paragraph")
        outputs = cell.get("outputs")
        for output in outputs if isinstance(outputs, list) else ():
            if isinstance(output, dict):
                _add_output(canonical, output, left_out)
    canonical.warnings += [f"{what}: {count:,}" for what, count in left_out.items()]
    return canonical.finish("ipynb", title=title, encoding=decoded.encoding)


def _joined(value: object) -> str:
    """Return a text, which may be stored as a list of its lines."""
    lines = value if isinstance(value, list) else [value]
    return "".join(line for line in lines if isinstance(line, str))


def _add_output(canonical: Canonical, output: dict[str, object], left_out: Counter[str]) -> None:
    """Add an output as it is shown, and count what is left out of it.

    The first that it has counts: an error, a picture, Markdown, a page, or plain text. A page
    counts if it has a table, or if there is no text, or one that only names an object
    ("<IPython.core.display.HTML object>").
    """
    data = output.get("data")
    data = data if isinstance(data, dict) else output
    text = _joined(data.get("text/plain", data.get("text")))
    page = _joined(data.get("text/html"))
    if "ename" in output:
        canonical.add(f"{output['ename']}: {output.get('evalue')}", "code")
    elif any(map(_PICTURE.match, data)):
        left_out["outputs with pictures or programs are not read"] += 1
    elif "text/markdown" in data:
        add_markdown(canonical, _joined(data["text/markdown"]))
    elif page and ("<table" in page or not text or text.startswith("<")):
        add_page(canonical, page)
    else:
        canonical.add(_shortened(text, left_out), "code")


def _shortened(text: str, left_out: Counter[str]) -> str:
    """Return the beginning of an output of plain text, and count what is left out of it."""
    if is_data(text):
        left_out["outputs of encoded data (base64) are not read"] += 1
        return ""
    if len(text) > _MOST_CHARS:
        left_out[f"outputs of which only the first {_MOST_CHARS:,} characters are read"] += 1
        text = text[:_MOST_CHARS].rpartition("\n")[0] or text[:_MOST_CHARS]
    return text
