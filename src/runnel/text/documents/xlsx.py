"""Read Excel workbooks (xlsx): each sheet under a heading, each row with content a block."""

from __future__ import annotations

import datetime
import re
import warnings
from typing import TYPE_CHECKING

from runnel.errors import ReadError, errors_as
from runnel.text.documents.document import Canonical, DocumentText, Limits
from runnel.text.documents.parts import Archive

if TYPE_CHECKING:
    from openpyxl.cell.read_only import EmptyCell, ReadOnlyCell

_NO_RESULT = re.compile(
    rb"<c\b([^<>]*)>\s*<f\b[^<>]*(?:/>|>[^<>]*</f>)\s*(?:<v\s*/>|<v></v>)?\s*</c>"
)
_DAMAGE = (LookupError, ValueError, TypeError, AttributeError, SyntaxError)  # raised by openpyxl
_TEXT = b't="str"'  # a formula whose result is an empty text


def read_xlsx(archive: Archive, limits: Limits) -> DocumentText:
    """Read all sheets, also hidden ones. Cells with content are joined by " | "; of formulas the
    stored results are read.
    """
    import openpyxl

    # refuses entities
    parts = (
        archive.read_xml(name) for name in sorted(archive.names) if name.endswith((".xml", ".rels"))
    )
    not_computed = sum(
        _TEXT not in attributes for data in parts for attributes in _NO_RESULT.findall(data)
    )
    canonical = Canonical()
    advice = "open and save it with a spreadsheet program"
    damage = errors_as(ReadError, "not a complete Excel workbook", *_DAMAGE, advice=advice)
    with damage, warnings.catch_warnings(), open(archive.path, "rb") as file:
        # about parts that have no text: styles, validations, extensions
        warnings.simplefilter("ignore")
        workbook = openpyxl.load_workbook(file, read_only=True, data_only=True)
        title = workbook.properties.title
        for sheet in workbook.worksheets:
            canonical.add(sheet.title, level=1)
            sheet.reset_dimensions()  # some programs store wrong ones
            for row in sheet.iter_rows():
                canonical.add(" | ".join(filter(None, map(_shown, row))), "row")
                limits.check(canonical.length, "unpacked_bytes", "the text of the workbook")
    if not_computed:
        canonical.warnings.append(
            f"formulas without a stored result were left out ({not_computed:,}); save the file with"
            " a spreadsheet program"
        )
    return canonical.finish("xlsx", title=title)


def _shown(cell: ReadOnlyCell | EmptyCell) -> str:
    """Return a cell's value: dates in ISO 8601, numbers in at most 15 digits,
    percentages as such.
    """
    value = cell.value
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return str(value.date())
    if isinstance(value, int | float) and "%" in cell.number_format:
        return f"{value * 100:.15g}%"
    if isinstance(value, float):
        return f"{value:.15g}"
    return " ".join(str(value).split())
