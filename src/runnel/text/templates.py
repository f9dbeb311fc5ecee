"""Templates that join a query and a document into one sequence of ids.

A template is a sequence of parts: literal text, special tokens and the two fields. Each part is tokenized separately and the ids
are joined, so the ids before a field do not depend on its content, and a state saved after them stays valid.

Notation: `{query}` and `{document}` are fields; `{begin}` and `{end}` the tokenizer's markers; `{token:[SEP]}` any other token
by its text; `{{` and `}}` braces; everything else literal text.

Whitespace: one space right before a field belongs to the field, because most vocabularies contain words with their leading
space: in "document: {document}" the literal is "document:" and the document is encoded as " " + document. `Template.encode`
does this (offsets still refer to the document); to encode a document piece by piece, feed `Template.lead` first. Tokenizers
that add the space themselves (SentencePiece style) get none from the template.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from runnel.errors import InputError
from runnel.records import expect_count, expect_text
from runnel.text.tokenizer import Encoded, Tokenizer

Field = Literal["query", "document"]
_FIELDS = ("query", "document")
_BUDGETS = ("max_query_tokens", "max_document_tokens", "max_tokens")
_BRACES = str.maketrans({"{": "{{", "}": "}}"})
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|([{}])")


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a template. `kind` is "text", "token" (values "begin" and "end" are markers, others "token:...") or "field"."""

    kind: Literal["text", "token", "field"]
    value: str
    space: bool = False  # fields: a space before the field belongs to it


@dataclass(frozen=True, slots=True, eq=False)
class Rendered:
    """The ids of a filled template."""

    ids: np.ndarray  # (n,) int32
    slices: dict[str, slice]  # the range of each field's ids
    cut: int = 0  # how many ids of the fields were cut to fit a budget


@dataclass(frozen=True, slots=True)
class Template:
    """An ordered sequence of parts with token budgets. None: nothing is cut.

    Attributes:
        parts: see `parse`.
        max_query_tokens, max_document_tokens: how many ids of the field are kept, from its start.
        max_tokens: budget for the whole template; only the document is cut to fit it.
        continues: this is the rest of a longer template (`starting_at`).
    """

    parts: tuple[Part, ...]
    max_query_tokens: int | None = None
    max_document_tokens: int | None = None
    max_tokens: int | None = None
    continues: bool = False

    def __post_init__(self) -> None:
        for name in _BUDGETS:
            expect_count(1 if getattr(self, name) is None else getattr(self, name), name)
        names = self.fields
        if len(set(names)) != len(names):
            raise InputError(f"the template {str(self)!r} names a field twice; expected each at most once")

    @classmethod
    def parse(
        cls,
        notation: str,
        *,
        max_query_tokens: int | None = None,
        max_document_tokens: int | None = None,
        max_tokens: int | None = None,
    ) -> Template:
        """Parse the notation described in the module docstring.

        Raises:
            InputError: an unknown name in braces, a single brace, a field named twice, or a budget that is not positive.
        """
        content: list[Part] = []
        text, position = "", 0
        for match in _PIECE.finditer(notation):
            text += notation[position : match.start()]
            position = match.end()
            if match[0] in ("{{", "}}"):
                text += match[0][0]
                continue
            part = _named_part(match)
            if part.kind == "field" and text.endswith(" "):
                part, text = Part("field", part.value, space=True), text[:-1]
            content += [Part("text", text)] * bool(text) + [part]
            text = ""
        text += notation[position:]
        content += [Part("text", text)] * bool(text)
        return cls(tuple(content), max_query_tokens, max_document_tokens, max_tokens)

    def __str__(self) -> str:
        """Return the notation: `Template.parse(str(template))` has the same parts."""
        return "".join(
            part.value.translate(_BRACES) if part.kind == "text" else f"{' ' * part.space}{{{part.value}}}" for part in self.parts
        )

    @property
    def fields(self) -> list[str]:
        return [part.value for part in self.parts if part.kind == "field"]

    def to_dict(self) -> dict[str, str | int | None]:
        """Return a dict for JSON in a model folder."""
        assert not self.continues, "only whole templates are stored"
        budgets = {name: None if (budget := getattr(self, name)) is None else int(budget) for name in _BUDGETS}
        return {"template": str(self), **budgets}

    @classmethod
    def from_dict(cls, content: dict[str, object]) -> Template:
        """Build a template from the result of `to_dict`.

        Raises:
            InputError: a missing or unknown key, or a value of the wrong type.
        """
        known = {"template", *_BUDGETS}
        notation = content.get("template")
        if not content.keys() <= known or not isinstance(notation, str):
            expected = f"an object with {', '.join(sorted(known))}, of which one is text"
            raise InputError(f"a template is {content!r}; expected {expected}")
        return cls.parse(notation, **{name: content.get(name) for name in known - {"template"}})  # type: ignore[arg-type]

    def before(self, field: Field) -> Template:
        """Return the parts before a field, which a state saved before it has read.

        Raises:
            InputError: no such field, or a total budget would make the document's length depend on the query.
        """
        return dataclasses.replace(self, parts=self.parts[: self._split_at(field)])

    def starting_at(self, field: Field) -> Template:
        """Return the field and the parts after it, which remain to be read from a saved state. Raises as `before`."""
        return dataclasses.replace(self, parts=self.parts[self._split_at(field) :], continues=True)

    def lead(self, tokenizer: Tokenizer, field: Field) -> str:
        """Return the text to encode before a field's text: a space or nothing."""
        return " " if self.parts[self._index(field)].space and not tokenizer.adds_space else ""

    def encode(self, tokenizer: Tokenizer, field: Field, text: str) -> Encoded:
        """Encode a field's text for `render`. Offsets refer to `text`; an empty text has no tokens."""
        return self.encode_batch(tokenizer, field, [text])[0]

    def encode_batch(self, tokenizer: Tokenizer, field: Field, texts: Sequence[str]) -> list[Encoded]:
        """Encode several texts as `encode` does, on all cores."""
        lead = self.lead(tokenizer, field)
        encoded = iter(tokenizer.encode_batch([lead + text for text in texts if text]))
        return [_shift_after(next(encoded), len(lead)) if text else Encoded.empty() for text in texts]

    def encode_pieces(self, tokenizer: Tokenizer, field: Field, text: str) -> Iterator[Encoded]:
        """Encode as `encode` does, piece by piece, in memory that does not depend on the text's length."""
        lead = self.lead(tokenizer, field)
        for piece in tokenizer.encode_pieces([lead, text] if text else []):
            yield _shift_after(piece, len(lead))

    def encode_query(self, tokenizer: Tokenizer, query: str) -> np.ndarray:
        """Encode a query (n,) int32, n >= 1: the query field, or the only field of a template for any text.

        Raises:
            InputError: the query is not a string, is empty, or the tokenizer drops all its characters.
        """
        expect_text(query, "the query")
        ids = self.encode(tokenizer, "query" if "query" in self.fields else "document", query).ids
        if not query.strip() or not len(ids):
            came = f"{query[:40]!r} has no tokens in this model's vocabulary" if query.strip() else "is empty"
            raise InputError(f"the query {came}; give the words to look for")
        return ids

    def render(
        self,
        tokenizer: Tokenizer,
        query: np.ndarray | None = None,
        document: np.ndarray | None = None,
        *,
        max_tokens: int | None = None,
    ) -> Rendered:
        """Join the ids of all parts.

        Args:
            tokenizer: encodes the literal parts.
            query, document: (n,) ids of the fields that the template has.
            max_tokens: replaces the template's own budget.

        Raises:
            InputError: a field is missing or not part of the template, a budget is not positive or too small for the parts
                besides the document, or the template needs a marker that the tokenizer lacks.
        """
        expect_count(1 if max_tokens is None else max_tokens, "max_tokens")
        ids_of_fields = {name: ids for name, ids in (("query", query), ("document", document)) if ids is not None}
        if ids_of_fields.keys() != set(self.fields):
            came, needed = (" and ".join(sorted(names)) or "none" for names in (ids_of_fields, self.fields))
            raise InputError(f"the template {str(self)!r} has the fields {needed}; got {came}")
        limits = {"query": self.max_query_tokens, "document": self.max_document_tokens}
        kept = {name: np.asarray(ids, dtype=np.int32)[: limits[name]] for name, ids in ids_of_fields.items()}
        parts = enumerate(self.parts)
        columns = [kept[part.value] if part.kind == "field" else self._ids(tokenizer, number) for number, part in parts]
        self._shorten_document(columns, self.max_tokens if max_tokens is None else max_tokens)
        slices, position = {}, 0
        for part, ids in zip(self.parts, columns, strict=True):
            if part.kind == "field":
                slices[part.value] = slice(position, position + len(ids))
            position += len(ids)
        joined = np.concatenate(columns) if columns else np.zeros(0, np.int32)
        total = sum(len(ids) for ids in ids_of_fields.values())
        return Rendered(joined, slices, total - sum(part.stop - part.start for part in slices.values()))

    def _shorten_document(self, columns: list[np.ndarray], budget: int | None) -> None:
        over = 0 if budget is None else sum(map(len, columns)) - budget
        if over <= 0:
            return
        number = self._index("document") if "document" in self.fields else None
        length = 0 if number is None else len(columns[number])
        if number is None or over > length:
            fixed = sum(map(len, columns)) - length
            raise InputError(f"max_tokens is {budget}, but the parts that are never cut have {fixed} tokens; raise max_tokens")
        columns[number] = columns[number][: length - over]

    def _ids(self, tokenizer: Tokenizer, number: int) -> np.ndarray:
        part = self.parts[number]
        if part.kind == "text":
            first = not self.continues and all(part.kind == "token" for part in self.parts[:number])
            return (tokenizer.encode(part.value) if first else tokenizer.encode_inside(part.value)).ids
        marker = {"begin": tokenizer.begin_id, "end": tokenizer.end_id}.get(part.value, -1)
        if marker is None:
            problem = f"the template {str(self)!r} needs an {part.value} marker and the tokenizer has none"
            raise InputError(f"{problem}; set it with {part.value}=")
        if marker < 0:
            marker = tokenizer.token_id(part.value.removeprefix("token:"))
        return np.array([marker], dtype=np.int32)

    def _split_at(self, field: Field) -> int:
        if self.max_tokens is not None and len(self.fields) > 1:
            problem = f"max_tokens={self.max_tokens} makes the document's length depend on the query"
            raise InputError(f"{problem}, so saved states would not stay valid; use max_document_tokens instead")
        return self._index(field)

    def _index(self, field: Field) -> int:
        if field not in self.fields:
            raise InputError(f"the template {str(self)!r} has no field {field!r}; it has {', '.join(self.fields) or 'none'}")
        return next(number for number, part in enumerate(self.parts) if part.kind == "field" and part.value == field)


def _named_part(match: re.Match[str]) -> Part:
    name = match[1] or ""
    if name in _FIELDS:
        return Part("field", name)
    if name in ("begin", "end") or (name.startswith("token:") and name != "token:"):
        return Part("token", name)
    near = difflib.get_close_matches(name, ("query", "document", "begin", "end"), n=1)
    hint = f" (did you mean {{{near[0]}}}?)" if near else ""
    place = f"at character {match.start()} of the template {match.string!r}{hint}"
    expected = "{query}, {document}, {begin}, {end} or {token:...}, or {{ and }} for braces"
    raise InputError(f"unknown {match[0]!r} {place}; expected {expected}")


# The papers' templates. The bi-encoder reads a document as the text and the end marker.
DOCUMENT = Template.parse("{document}{end}")
DOCUMENT_THEN_QUERY = Template.parse("document: {document}\n\nquery: {query}{end}")
# From the code that paper B links to, and so used by its checkpoints; the paper prints it without capitals.
CAPITAL_DOCUMENT_THEN_QUERY = Template.parse("Document: {document}\n\nQuery: {query}{end}")
DOCUMENT_SEMICOLON_QUERY = Template.parse("document: {document} ; query: {query} ;{end}")
QUERY_LINE_THEN_DOCUMENT = Template.parse("{query}\n{document}")

OWN_PAIR = "{query}{end}{document}{end}"
# How a reranker reads a pair, for models that read from left to right and, in the notation after the begin marker, for others
# (`OWN_PAIR`: as the tokenizer writes pairs); None: models of that kind cannot. They are the papers', those of paper B's
# checkpoints, and the tokenizer's own; docs/models.md shows them.
PAIR_TEMPLATES: dict[str, tuple[Template | None, str | None]] = {
    "rankmamba": (DOCUMENT_THEN_QUERY, OWN_PAIR),
    "rankmamba-code": (CAPITAL_DOCUMENT_THEN_QUERY, None),
    "ssm-rerankers": (DOCUMENT_SEMICOLON_QUERY, " ; query: {query} ; document: {document}"),
    "pair": (None, OWN_PAIR),
}


def _shift_after(encoded: Encoded, lead: int) -> Encoded:
    """Return the same tokens with offsets into the text that begins after `lead` characters."""
    if not lead:
        return encoded
    return Encoded(encoded.ids, np.maximum(encoded.starts - lead, 0), np.maximum(encoded.ends - lead, 0))
