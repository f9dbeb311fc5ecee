"""The filled fields of a form in a PDF, and text that was typed over a page: in the lines of the
page's text, or with their labels.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_ushort, cast, create_string_buffer
from typing import Any, NamedTuple

from pypdfium2 import PdfDocument, PdfPage, raw

from runnel.text.documents.pdf_words import HIDDEN, Box, PageWords, Word, is_inside, turned

_FIELD_BYTES = 1 << 20  # the most bytes of a value
_NEAR = 1.5  # the largest distance of a label above or below its field, in heights of its words
# the most distance between the middles of a word and a field in its line, in heights of the word
_SAME_LINE = 0.7
_LINE = re.compile(r"[_. \u2026]{3,}")  # a line to write on
_UNSEEN = 1 | 2 | 32  # flags of annotations: invisible, hidden, not on the screen
_PASSWORD = 1 << 13  # a flag of fields
_XFA = "a form of Adobe's XFA, whose fields are not read: print it to a PDF and read that"
CHECKED = "\u2612"
UNCHECKED = "\u2610"


class _Field(NamedTuple):
    """A field. `label`: its description for users, else its name. `said`: of a box that is checked,
    what stands for it next to its label ("yes" in "Married: yes").
    """

    value: str
    said: str
    label: str
    described: bool
    box: Box  # upright, like the boxes of words
    place: Box  # in the page's own coordinates


def add_fields(document: PdfDocument, page: PdfPage, seen: PageWords) -> list[str]:
    """Add the filled fields of a page, its boxes to check, and text that was typed over it to its
    words; return "label: value" for values without text beside them.

    Their label is the field's description for users, else the text above or below the field, else
    the field's name. Without text beside it, a box is read only if it is checked. Lines to write
    on, of underscores or dots, are removed below values.
    """
    angle = Counter(word.angle for word in seen.words).most_common(1)[0][0] if seen.words else 0
    fields = _fields(document, page, angle, seen.faults)
    lines: list[str] = []
    placed: list[Word] = []
    for field in sorted(fields, key=lambda field: (-field.box[3], field.box[0])):
        # without the lines to write on, of this field
        seen.words[:] = [
            word
            for word in seen.words
            if not (is_inside(word.box, field.place) and _LINE.fullmatch(word.text))
        ]
        upright = [word for word in seen.words if word.angle == angle]
        beside = _beside(field.box, upright)
        if beside:
            # as high as the text next to it, so that both are in a row
            box = (field.box[0], beside.bottom, field.box[2], beside.top)
            placed.append(
                Word(field.value, *box, angle, beside.font, line_start=False, box=field.place)
            )
        elif field.value != UNCHECKED:
            label = field.label if field.described else _near(field.box, upright) or field.label
            value = field.said if field.value == CHECKED else field.value
            lines.append(f"{label.rstrip(' :')}: {value}" if label else value)
    seen.words.extend(placed)
    return lines


def _fields(document: PdfDocument, page: PdfPage, angle: int, faults: set[str]) -> list[_Field]:
    """Return the fields of a page that are seen and have a value; add what must be said of others
    to the faults. `angle`: quarter turns after which the page's text is upright.
    """
    form = document.formenv
    fields: list[_Field] = []
    kind = document.get_formtype()
    count = raw.FPDFPage_GetAnnotCount(page)
    if kind == raw.FORMTYPE_XFA_FULL or (kind == raw.FORMTYPE_XFA_FOREGROUND and not count):
        faults.add(_XFA)
    for number in range(count):
        annotation = raw.FPDFPage_GetAnnot(page, number)
        if not annotation:
            continue
        try:
            typed = raw.FPDFAnnot_GetSubtype(annotation) == raw.FPDF_ANNOT_FREETEXT
            described = _string(raw.FPDFAnnot_GetFormFieldAlternateName, form, annotation)
            name = _string(raw.FPDFAnnot_GetFormFieldName, form, annotation)
            value = (
                _string(raw.FPDFAnnot_GetStringValue, annotation, b"Contents")
                if typed
                else _value(form, annotation)
            )
            unseen = raw.FPDFAnnot_GetFlags(annotation) & _UNSEEN
            if unseen and value and value != UNCHECKED:
                faults.add(HIDDEN)
            if value and not unseen:
                rectangle = raw.FS_RECTF()
                raw.FPDFAnnot_GetRect(annotation, rectangle)
                place = (rectangle.left, rectangle.bottom, rectangle.right, rectangle.top)
                kind = raw.FPDFAnnot_GetFormFieldType(form, annotation)
                choice = _string(raw.FPDFAnnot_GetFormFieldExportValue, form, annotation)
                fields.append(
                    _Field(
                        value,
                        said=choice if kind == raw.FPDF_FORMFIELD_RADIOBUTTON else "yes",
                        label=described or name,
                        described=typed or bool(described),
                        box=turned(place, angle),
                        place=place,
                    )
                )
        finally:
            raw.FPDFPage_CloseAnnot(annotation)
    return fields


def _value(form: Any, annotation: Any) -> str:
    """Return what a field shows; "" if it is empty or the annotation is no field."""
    kind = raw.FPDFAnnot_GetFormFieldType(form, annotation)
    if kind in (raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON):
        return CHECKED if raw.FPDFAnnot_IsChecked(form, annotation) else UNCHECKED
    if kind == raw.FPDF_FORMFIELD_SIGNATURE:
        return "signed" if raw.FPDFAnnot_HasKey(annotation, b"V") else ""
    if kind not in (
        raw.FPDF_FORMFIELD_TEXTFIELD,
        raw.FPDF_FORMFIELD_COMBOBOX,
        raw.FPDF_FORMFIELD_LISTBOX,
    ):
        return ""
    chosen = [
        _string(raw.FPDFAnnot_GetOptionLabel, form, annotation, number)
        for number in range(raw.FPDFAnnot_GetOptionCount(form, annotation))
        if raw.FPDFAnnot_IsOptionSelected(form, annotation, number)
    ]
    value = ", ".join(chosen) or _string(raw.FPDFAnnot_GetFormFieldValue, form, annotation)
    secret = kind == raw.FPDF_FORMFIELD_TEXTFIELD and (
        raw.FPDFAnnot_GetFormFieldFlags(form, annotation) & _PASSWORD
    )
    return re.sub(".", "*", value) if secret else value


def _string(read: Callable[..., int], *arguments: Any) -> str:
    """Return a string that a function of PDFium writes, with single spaces."""
    size = min(read(*arguments, None, 0), _FIELD_BYTES)
    buffer = create_string_buffer(size + 2)
    read(*arguments, cast(buffer, POINTER(c_ushort)), size)
    text = buffer.raw[: max(0, size - 2)].decode("utf-16-le", "replace")
    return "\n".join(" ".join(line.split()) for line in text.splitlines()).strip()


def _beside(box: Box, words: Sequence[Word]) -> Word | None:
    """Return one word, as a model of height and font, of the uppermost line beside a field; None if
    there is none.
    """
    middle = (box[1] + box[3]) / 2
    line = [
        word
        for word in words
        if abs(word.center - middle) < max(_SAME_LINE * word.height, (box[3] - box[1]) / 2)
        and (word.left >= box[2] - 1 or word.right <= box[0] + 1)
    ]
    return max(line, key=lambda word: word.center, default=None)


def _near(box: Box, words: Sequence[Word]) -> str:
    """Return the text directly above a field, else the text directly below it."""
    for above in (True, False):
        near = [
            word
            for word in words
            if -word.height / 3
            <= (word.bottom - box[3] if above else box[1] - word.top)
            < _NEAR * word.height
            and word.left < box[2]
            and word.right > box[0] - word.height
        ]
        if near:
            break
    near.sort(key=lambda word: word.left)
    return " ".join(word.text for word in near)
