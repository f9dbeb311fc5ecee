"""The filled fields of a form in a PDF, with their labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ctypes import POINTER, c_ushort, cast, create_string_buffer
from typing import TYPE_CHECKING, Any

from runnel.text.documents.pdf_words import Box, Word

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument, PdfPage

_FIELD_BYTES = 1 << 20  # the most bytes of a value
_LEFT = 12.0  # the largest distance of a label from its field, in heights of its words
_ABOVE = 1.5
# the most distance between the middles of a label and its field, in heights of the words
_SAME_LINE = 0.7


def fields_of(document: PdfDocument, page: PdfPage, words: Sequence[Word]) -> Iterator[str]:
    """Yield "label: value" for each filled field of a page, and "label: yes" for each box that is
    checked, from top to bottom.

    The label is the field's description for users, else the text beside or above it, else its name.
    """
    from pypdfium2 import raw

    form = document.formenv
    if form is None:
        return
    fields: list[tuple[float, float, str]] = []
    for number in range(raw.FPDFPage_GetAnnotCount(page)):
        annotation = raw.FPDFPage_GetAnnot(page, number)
        if not annotation:
            continue
        try:
            if raw.FPDFAnnot_GetSubtype(annotation) != raw.FPDF_ANNOT_WIDGET:
                continue
            rectangle = raw.FS_RECTF()
            raw.FPDFAnnot_GetRect(annotation, rectangle)
            box = (rectangle.left, rectangle.bottom, rectangle.right, rectangle.top)
            line = _line(form, annotation, box, words)
        finally:
            raw.FPDFPage_CloseAnnot(annotation)
        if line:
            fields.append((-box[3], box[0], line))
    for _, _, line in sorted(fields):
        yield line


def _line(form: Any, annotation: Any, box: Box, words: Sequence[Word]) -> str:
    """Return the label and the value of a field; "" if it is empty."""
    from pypdfium2 import raw

    kind = raw.FPDFAnnot_GetFormFieldType(form, annotation)
    described = _string(raw.FPDFAnnot_GetFormFieldAlternateName, form, annotation)
    name = _string(raw.FPDFAnnot_GetFormFieldName, form, annotation)
    if kind in (raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON):
        if not raw.FPDFAnnot_IsChecked(form, annotation):
            return ""
        beside = _beside(box, words, right=True)
        if kind == raw.FPDF_FORMFIELD_RADIOBUTTON:
            exported = _string(raw.FPDFAnnot_GetFormFieldExportValue, form, annotation)
            return f"{described or name}: {beside or exported}"
        return f"{described or beside or _beside(box, words) or name}: yes"
    if kind in (
        raw.FPDF_FORMFIELD_TEXTFIELD,
        raw.FPDF_FORMFIELD_COMBOBOX,
        raw.FPDF_FORMFIELD_LISTBOX,
    ):
        value = _string(raw.FPDFAnnot_GetFormFieldValue, form, annotation)
        if value:
            label = described or _beside(box, words) or _above(box, words) or name
            return f"{label.rstrip(' :')}: {value}" if label else value
    return ""


def _string(read: Callable[..., int], form: Any, annotation: Any) -> str:
    size = min(read(form, annotation, None, 0), _FIELD_BYTES)
    buffer = create_string_buffer(size + 2)
    read(form, annotation, cast(buffer, POINTER(c_ushort)), size)
    text = buffer.raw[: max(0, size - 2)].decode("utf-16-le", "replace")
    return "\n".join(" ".join(line.split()) for line in text.splitlines()).strip()


def _beside(box: Box, words: Sequence[Word], *, right: bool = False) -> str:
    """Return the text in the line of a field, to its left or right."""
    middle = (box[1] + box[3]) / 2
    near = [
        word
        for word in words
        if abs((word.box[1] + word.box[3]) / 2 - middle)
        < max(_SAME_LINE * word.height, (box[3] - box[1]) / 2)
        and (word.box[0] >= box[2] - 1 if right else word.box[2] <= box[0] + 1)
    ]
    near.sort(key=lambda word: word.box[0], reverse=not right)
    edge = box[2] if right else box[0]
    taken: list[str] = []
    for word in near:  # up to a wide gap or another field's place
        distance = word.box[0] - edge if right else edge - word.box[2]
        if distance > (_LEFT if not taken else 1.0) * word.height:
            break
        taken.append(word.text)
        edge = word.box[2] if right else word.box[0]
    return " ".join(taken if right else reversed(taken))


def _above(box: Box, words: Sequence[Word]) -> str:
    """Return the text directly above a field."""
    near = [
        word
        for word in words
        if 0 <= word.box[1] + word.height / 3 - box[3] < _ABOVE * word.height
        and word.box[0] < box[2]
        and word.box[2] > box[0] - word.height
    ]
    near.sort(key=lambda word: word.box[0])
    return " ".join(word.text for word in near)
