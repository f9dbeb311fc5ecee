"""The protocols of the classes that score sentences and documents, in `models/pocket` and in
`models/recurrent`, and the tokens that they read.

S  sentences of a document   n  documents
"""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from runnel.batching import grouped
from runnel.errors import InputError
from runnel.models.memory import Memory, Remembered, StatePrecision
from runnel.models.model import Model
from runnel.models.scored import Scored
from runnel.request import Progress
from runnel.text.documents.document import DocumentText
from runnel.text.joined import as_read
from runnel.text.kinds import text_of
from runnel.text.ranked import RankedText
from runnel.text.sentences import SentenceTokens, Through, Unit, read_sentences
from runnel.text.templates import Template

_TOGETHER = 8  # the most documents tokenized in one call, on all cores, ...
# ... and about the most characters, so that several long documents are not in memory together
_TOGETHER_CHARS = 1 << 18
_PIECES_CHARS = 1 << 15  # longer documents are tokenized piece by piece


class SentenceScorer(Protocol):
    """A scorer of sentences: `VectorScorer` of stored vectors, or `Scanner` with a state."""

    model: Model
    template: Template  # of a document
    remembers: bool  # whether documents are read before the query, so that they can be remembered

    @property
    def calibrated(self) -> bool:
        """Whether a score's sigmoid is the probability that the sentence answers."""

    def read_query(self, query: str) -> Any:
        """Read a query, for `scan`."""

    def scan(
        self, query: Any, documents: Iterable[SentenceTokens], progress: Progress | None = None
    ) -> Iterator[Scored]:
        """Read documents and score their sentences, in order; -inf for one without a token."""


class DocumentScorer(Protocol):
    """A scorer of documents: `VectorScorer` of stored vectors, or `StateScorer` of states."""

    template: Template
    reads_pairs: bool  # a document that is not remembered is read together with the query

    @property
    def kind(self) -> type[Remembered]:
        """The class of its remembered documents."""

    @property
    def remembers(self) -> bool:
        """Whether documents are read before the query, so that they can be remembered."""

    def remember(
        self,
        documents: Iterable[str | DocumentText],
        precision: StatePrecision,
        progress: Progress | None = None,
    ) -> Iterator[Remembered]:
        """Read documents to remember them, in order."""

    def score(self, query: str, memory: Memory, progress: Progress | None = None) -> np.ndarray:
        """Return the scores (n,) float32 of a memory's documents."""


def sentence_tokens(
    model: Model,
    template: Template,
    documents: Iterable[str | DocumentText],
    unit: Unit | None = None,
    language: str = "en",
    through: Through = iter,
) -> Iterator[SentenceTokens]:
    """Yield the tokens of each document as it is ranked and as the model reads it (`as_read`), in
    units (default: the model's). `through` as for `read_sentences`; it also yields the pieces of
    a long text.
    """
    for group in grouped(
        documents, lambda document: len(text_of(document)), _TOGETHER_CHARS, _TOGETHER
    ):
        # A document is ranked without the parts that only look like text, such as markup. A model
        # of "clauses" reads this text without some whitespace, whatever units are scored: `kept`
        # are the characters that stay.
        ranked = [RankedText.of(document) for document in group]
        texts = [as_read(document.text, model.unit, language) for document in ranked]
        short = iter(
            template.encode_batch(
                model.tokenizer, "document", [t for t, _ in texts if len(t) <= _PIECES_CHARS]
            )
        )
        for document, (text, kept) in zip(ranked, texts, strict=True):
            pieces = (
                [next(short)]
                if len(text) <= _PIECES_CHARS
                else through(template.encode_pieces(model.tokenizer, "document", text))
            )
            yield read_sentences(
                document,
                pieces,
                unit=unit or model.unit,
                language=language,
                kept=kept,
                through=through,
            )


def no_vectors_error(model: Model) -> InputError:
    """Return the error for a result that only a model with stored vectors of sentences has."""
    return InputError(
        f"{model.source} reads the query and the document together, so it cannot remember documents"
        " and its scores have no parts; use a model that scores sentence vectors, as pocket does"
    )
