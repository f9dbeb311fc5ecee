"""Templates that join a query and a document into one sequence of ids.

A template is a sequence of parts: literal text, special tokens and the two fields. Each part is
tokenized separately and the ids are joined, so the ids before a field do not depend on its content,
and a state saved after them stays valid.

Notation: `{query}` and `{document}` are fields; `{begin}` and `{end}` the tokenizer's markers;
`{token:[SEP]}` any other token by its text; `{{` and `}}` braces; everything else literal text.

Whitespace: a space right before a field belongs to the field, because most vocabularies contain
words with their leading space. In "document: {document}" the literal is "document:", and the
document is encoded as " " + document. `Template.encode` does this (offsets still refer to the
document); to encode a document piece by piece, feed `Template.lead` first. Tokenizers that add the
space themselves (SentencePiece style) get none from the template.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from runnel.checks import expect_count, expect_text
from runnel.errors import InputError
from runnel.text.tokenizer import Encoded, Tokenizer

Field = Literal["query", "document"]
_FIELDS = ("query", "document")
_BRACES = str.maketrans({"{": "{{", "}": "}}"})
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|([{}])")  # "{{", "}}", "{query}"; "{" is an error


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a template. `kind` is "text", "token" (values "begin" and "end" are markers,
    others "token:...") or "field".
    """

    kind: Literal["text", "token", "field"]
    value: str
    space: bool = False  # of a field: the template has a space before it, which belongs to it


@dataclass(frozen=True, slots=True, eq=False)
class Rendered:
    """The ids of a filled template."""

    ids: np.ndarray  # (n,) int32
    slices: dict[str, slice]  # the range of each field's ids
    cut: int = 0  # how many ids of the document were cut to fit `max_tokens`


@dataclass(frozen=True, slots=True)
class Template:
    """An ordered sequence of parts.

    Attributes:
        parts: see `parse`.
        continues: this is the rest of a longer template (`starting_at`).
    """

    parts: tuple[Part, ...]
    continues: bool = False

    @classmethod
    def parse(cls, notation: str) -> Template:
        """Parse the notation described in the module docstring.

        Raises:
            InputError: an unknown name in braces, a single brace, or a field named twice.
        """
        content: list[Part] = []
        text = ""  # the literal text after the last part
        position = 0
        for match in _PIECE.finditer(notation):
            text += notation[position : match.start()]
            position = match.end()
            if match[0] in ("{{", "}}"):
                text += match[0][0]
                continue
            part = _named_part(match)
            if part.kind == "field" and text.endswith(" "):
                part = dataclasses.replace(part, space=True)
                text = text[:-1]
            content += [Part("text", text), part]
            text = ""
        content.append(Part("text", text + notation[position:]))
        template = cls(tuple(part for part in content if part.value))
        if len(set(template.fields)) != len(template.fields):
            raise InputError(
                f"the template {notation!r} names a field twice; expected each at most once"
            )
        return template

    def __str__(self) -> str:
        """Return the notation: `Template.parse(str(template))` has the same parts."""
        notation = ""
        for part in self.parts:
            if part.kind == "text":
                notation += part.value.translate(_BRACES)
            else:
                notation += f" {{{part.value}}}" if part.space else f"{{{part.value}}}"
        return notation

    @property
    def fields(self) -> list[str]:
        return [part.value for part in self.parts if part.kind == "field"]

    def to_dict(self) -> dict[str, str]:
        """Return a dict for JSON in a model folder."""
        assert not self.continues, "only whole templates are stored"
        return {"template": str(self)}

    @classmethod
    def from_dict(cls, content: dict[str, object]) -> Template:
        """Build a template from the result of `to_dict`.

        Raises:
            InputError: a missing or unknown key, or a value of the wrong type.
        """
        notation = content.get("template")
        names = {name for name, value in content.items() if value is not None}
        if names != {"template"} or not isinstance(notation, str):
            raise InputError(
                f'a template is {content!r}; expected an object with the text "template"'
            )
        return cls.parse(notation)

    def before(self, field: Field) -> Template:
        """Return the parts before a field, which a state saved before it has read.

        Raises:
            InputError: no such field.
        """
        return dataclasses.replace(self, parts=self.parts[: self._index(field)])

    def starting_at(self, field: Field) -> Template:
        """Return the field and the parts after it, which remain to be read from a saved state.
        Raises as `before`.
        """
        return dataclasses.replace(self, parts=self.parts[self._index(field) :], continues=True)

    def lead(self, tokenizer: Tokenizer, field: Field) -> str:
        """Return the text to encode before a field's text: a space or nothing."""
        return " " if self.parts[self._index(field)].space and not tokenizer.adds_space else ""

    def encode(self, tokenizer: Tokenizer, field: Field, text: str) -> Encoded:
        """Encode a field's text for `render`. Offsets refer to `text`; an empty
        text has no tokens.
        """
        return self.encode_batch(tokenizer, field, [text])[0]

    def encode_batch(
        self, tokenizer: Tokenizer, field: Field, texts: Sequence[str]
    ) -> list[Encoded]:
        """Encode several texts as `encode` does, on all cores."""
        lead = self.lead(tokenizer, field)
        filled = iter(tokenizer.encode_batch([lead + text for text in texts if text]))
        encoded = [next(filled) if text else Encoded.empty() for text in texts]
        return [_shift_after(part, len(lead)) for part in encoded] if lead else encoded

    def encode_pieces(self, tokenizer: Tokenizer, field: Field, text: str) -> Iterator[Encoded]:
        """Encode as `encode` does, piece by piece, in memory that does not depend on the text's
        length.
        """
        lead = self.lead(tokenizer, field)
        for piece in tokenizer.encode_pieces([lead, text] if text else []):
            yield _shift_after(piece, len(lead)) if lead else piece

    def encode_query(self, tokenizer: Tokenizer, query: str) -> Encoded:
        """Encode a query, of one token at least: the query field, or the only field of a template
        for any text.

        Raises:
            InputError: the query is not a string, is empty, or the tokenizer drops all its
                characters.
        """
        expect_text(query, "the query")
        encoded = self.encode(tokenizer, "query" if "query" in self.fields else "document", query)
        if not query.strip() or not len(encoded):
            problem = "is empty"
            if query.strip():
                problem = f"{query[:40]!r} has no tokens in this model's vocabulary"
            raise InputError(f"the query {problem}; give the words to look for")
        return encoded

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
            max_tokens: the most ids; only the document is cut to fit them.

        Raises:
            InputError: a field is missing or not part of the template, `max_tokens` is not positive
                or too small for the parts besides the document, or the template needs a marker that
                the tokenizer lacks.
        """
        expect_count(1 if max_tokens is None else max_tokens, "max_tokens")
        arguments = (("query", query), ("document", document))
        fields = {
            name: np.asarray(ids, dtype=np.int32) for name, ids in arguments if ids is not None
        }
        if fields.keys() != set(self.fields):
            came, needed = (
                " and ".join(sorted(names)) or "none" for names in (fields, self.fields)
            )
            raise InputError(f"the template {str(self)!r} has the fields {needed}; got {came}")
        columns = [
            fields[part.value] if part.kind == "field" else self._ids(tokenizer, number)
            for number, part in enumerate(self.parts)
        ]
        cut = 0 if max_tokens is None else self._shorten_document(columns, max_tokens)
        slices = {}
        position = 0
        for part, ids in zip(self.parts, columns, strict=True):
            if part.kind == "field":
                slices[part.value] = slice(position, position + len(ids))
            position += len(ids)
        return Rendered(np.concatenate(columns) if columns else np.zeros(0, np.int32), slices, cut)

    def _shorten_document(self, columns: list[np.ndarray], budget: int) -> int:
        """Cut the ids of the document so that all parts have at most `budget` ids; return how many
        were cut.
        """
        over = max(0, sum(map(len, columns)) - budget)
        if not over:
            return 0
        number = self._index("document") if "document" in self.fields else None
        length = 0 if number is None else len(columns[number])
        if number is None or over > length:
            fixed = sum(map(len, columns)) - length
            raise InputError(
                f"max_tokens is {budget}, but the parts that are never cut have {fixed} tokens;"
                " raise max_tokens"
            )
        columns[number] = columns[number][: length - over]
        return over

    def _ids(self, tokenizer: Tokenizer, number: int) -> np.ndarray:
        part = self.parts[number]
        if part.kind == "text":
            # the start of a text, before which some tokenizers put a space
            first = not self.continues and all(part.kind == "token" for part in self.parts[:number])
            encode = tokenizer.encode if first else tokenizer.encode_inside
            return encode(part.value).ids
        markers = {"begin": tokenizer.begin_id, "end": tokenizer.end_id}
        if part.value in markers:
            marker = markers[part.value]
        else:
            marker = tokenizer.token_id(part.value.removeprefix("token:"))
        if marker is None:
            raise InputError(
                f"the template {str(self)!r} needs an {part.value} marker and the tokenizer has"
                f" none; set it with {part.value}="
            )
        return np.array([marker], dtype=np.int32)

    def _index(self, field: Field) -> int:
        if field not in self.fields:
            raise InputError(
                f"the template {str(self)!r} has no field {field!r}; it has"
                f" {', '.join(self.fields) or 'none'}"
            )
        return [part.value if part.kind == "field" else None for part in self.parts].index(field)


def _named_part(match: re.Match[str]) -> Part:
    name = match[1] or ""
    if name in _FIELDS:
        return Part("field", name)
    if name in ("begin", "end") or (name.startswith("token:") and name != "token:"):
        return Part("token", name)
    near = difflib.get_close_matches(name, ("query", "document", "begin", "end"), n=1)
    hint = f" (did you mean {{{near[0]}}}?)" if near else ""
    raise InputError(
        f"unknown {match[0]!r} at character {match.start()} of the template {match.string!r}{hint};"
        " expected {query}, {document}, {begin}, {end} or {token:...}, or {{ and }} for braces"
    )


# The papers' templates. The bi-encoder reads a document as the text and the end marker.
DOCUMENT = Template.parse("{document}{end}")
DOCUMENT_THEN_QUERY = Template.parse("document: {document}\n\nquery: {query}{end}")
# The code that paper B (docs/papers.md) links to has this template, and so its checkpoints use it.
# The paper prints it without capitals.
CAPITAL_DOCUMENT_THEN_QUERY = Template.parse("Document: {document}\n\nQuery: {query}{end}")
DOCUMENT_SEMICOLON_QUERY = Template.parse("document: {document} ; query: {query} ;{end}")
QUERY_LINE_THEN_DOCUMENT = Template.parse("{query}\n{document}")

OWN_PAIR = "{query}{end}{document}{end}"
# How a reranker reads a pair: the template for models that read from left to right; and the text
# after the begin marker for other models (`OWN_PAIR`: as the tokenizer writes pairs). None: models
# of that kind cannot. They are the templates of the papers, of paper B's checkpoints,
# and of the tokenizer; docs/models.md shows them.
PAIR_TEMPLATES: dict[str, tuple[Template | None, str | None]] = {
    "rankmamba": (DOCUMENT_THEN_QUERY, OWN_PAIR),
    "rankmamba-code": (CAPITAL_DOCUMENT_THEN_QUERY, None),
    "ssm-rerankers": (DOCUMENT_SEMICOLON_QUERY, " ; query: {query} ; document: {document}"),
    "pair": (None, OWN_PAIR),
}


def _shift_after(encoded: Encoded, lead: int) -> Encoded:
    """Return the same tokens with offsets into the text that begins after `lead` characters."""
    return Encoded(
        encoded.ids, np.maximum(encoded.starts - lead, 0), np.maximum(encoded.ends - lead, 0)
    )
