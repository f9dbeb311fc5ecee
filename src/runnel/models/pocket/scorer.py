"""Scores of a document's sentences, and of whole documents, from stored vectors.

The order of work, in `VectorScorer`:

    read_query   the query's vectors
    read         documents become `SentenceVectors`, which a user may keep (`remember`)
    look         the first look at such a document: scores of its sentences, from vectors and
                 lexical features (`inputs`); `scan` reads and looks, `parts` explains a score
    score        scores of whole documents, for a reranker (`relevance_features`)

The encoder reads in one form or two (a form is the encoder with one set of upper layers, see
`steps.py`): "sentences" for the vectors of sentences, and for whole documents also "texts", if
sentences have layers of their own. Without such layers both are the same, so one is enough.

S  sentences of a document      D  width of the vectors      n  documents, or sentences with a token
F  lexical features of a sentence
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import tee
from typing import cast

import numpy as np

from runnel.backbones.config import Blocks
from runnel.backbones.encoder.config import Form
from runnel.checks import expect_text
from runnel.errors import InputError
from runnel.models.head import WITHOUT_TOKENS
from runnel.models.memory import Memory, StatePrecision
from runnel.models.model import Model
from runnel.models.pocket.codes import Code, find_codes, meet_codes
from runnel.models.pocket.heads import VectorRelevance, VectorScore, normalize
from runnel.models.pocket.layout import lay_out, longest_block
from runnel.models.pocket.lexical import FEATURES, WordTable, sentence_features, static_bm25
from runnel.models.pocket.looks import Judging, first_look
from runnel.models.pocket.sentence_vectors import SentenceSums, SentenceVectors
from runnel.models.pocket.steps import read_blocks
from runnel.models.scored import Scored
from runnel.models.scoring import sentence_tokens
from runnel.request import Progress, TokenCount, on_cpu
from runnel.text.documents.document import DocumentText
from runnel.text.sentences import SentenceTokens, sentence_of_tokens, split_sentences


@dataclass(frozen=True)
class VectorQuery:
    """A query that has been read. With a single form, both vectors are the same."""

    ids: np.ndarray  # int32, without markers and prompt
    vector: np.ndarray  # (D,) for sentences
    text_vector: np.ndarray  # (D,) for passages and whole documents
    codes: Sequence[Code] = ()


class VectorScorer:
    """Reads documents, as `SentenceVectors`, and scores them for a query.

    `passages`: also store a vector for each passage, for whole documents. If sentences have no
    layers of their own, a passage's vector is the sum of its sentences' vectors, and is not stored.
    """

    # as `SentenceScorer` and `DocumentScorer` (`models/scoring.py`) ask
    remembers = True
    kind = SentenceVectors
    reads_pairs = False

    def __init__(self, model: Model, *, passages: bool = False) -> None:
        self.model = model
        self._head: VectorScore = model.head("sentences")
        self._passages = passages and model.backbone.own_sentences
        self._forms: tuple[Form, ...] = ("texts", "sentences") if self._passages else ("sentences",)
        self.template = model.templates["document"]
        self.prompts = {name: model.prompt_ids(name) for name in ("query", "document")}
        self.judging = Judging(model, self.prompts) if "judge" in model.heads else None

    @property
    def calibrated(self) -> bool:
        """Whether a score's sigmoid is a probability."""
        return (self._head if self.judging is None else self.judging.head).calibrated

    def read_query(self, query: str) -> VectorQuery:
        """Read a query, a long one in passages, like a document. Its vectors are weighted means of
        all hidden vectors, also of markers and of the prompt.
        """
        # 1. The ids to read.
        expect_text(query, "the query")
        prompt = self.prompts["query"]
        tokenizer = self.model.tokenizer
        backbone = self.model.backbone
        lead = " " if len(prompt) and not tokenizer.adds_space else ""
        query = lead + query.strip()
        encoded = self.template.encode_query(tokenizer, query)
        bounds = np.array([0, len(encoded)])
        if len(encoded) > longest_block(backbone, len(prompt)):
            bounds = sentence_of_tokens(split_sentences(query), encoded)
        row = lay_out(encoded.ids, bounds, backbone, tokenizer.markers(), prompt=prompt).ids
        # 2. Their mean. The hidden vectors of two forms are side by side, (n, 2 D), and so are the
        # two sums in `total`: first "texts", then "sentences".
        weights = np.asarray(on_cpu(self.model.weight))[row]
        total = np.zeros(1)  # takes the width of the first summand
        for start, hidden in read_blocks(self.model, self._forms, [row]):
            total = total + weights[start : start + len(hidden)] @ hidden
        mean = (total / weights.sum(dtype=np.float64)).astype(np.float32)
        vectors = normalize(mean.reshape(-1, backbone.hidden_size))
        return VectorQuery(encoded.ids, vectors[-1], vectors[0], find_codes(query))

    def read(
        self, documents: Iterable[SentenceTokens], progress: Progress | None = None
    ) -> Iterator[SentenceVectors]:
        """Read documents in order; an empty document has no sentences."""
        # a caller that also reports before the first token has a count of its own
        count = progress if isinstance(progress, TokenCount) else TokenCount(progress)
        # A step of the encoder has blocks of several documents, so their rows are laid out ahead;
        # `tee` keeps each document's sums until its hidden vectors come.
        laid, unread = tee(
            SentenceSums(self.model, tokens, passages=self._passages) for tokens in documents
        )
        rows = count.totaled((sums.layout.ids for sums in unread), len)
        blocks = read_blocks(self.model, self._forms, rows, count)
        for sums in laid:
            done = 0
            while done < len(sums.layout.ids):
                start, hidden = next(blocks)
                sums.take(start, hidden)
                done = start + len(hidden)
            yield sums.result()

    def scan(
        self,
        query: VectorQuery,
        documents: Iterable[SentenceTokens],
        progress: Progress | None = None,
    ) -> Iterator[Scored]:
        """Read documents and score them, in order."""
        return (self.look(query, document) for document in self.read(documents, progress))

    def remember(
        self,
        documents: Iterable[str | DocumentText],
        precision: StatePrecision = "int8",
        progress: Progress | None = None,
    ) -> Iterator[SentenceVectors]:
        """Read documents to remember them; `precision` has no effect, because there are no
        states.
        """
        return self.read(
            sentence_tokens(self.model, self.template, documents, language="auto"), progress
        )

    def score(self, query: str, memory: Memory, progress: Progress | None = None) -> np.ndarray:
        """Return the scores (n,) float32 of a memory's documents, as `Reranker.score` does."""
        if not len(memory):
            return np.zeros(0, dtype=np.float32)
        asked = self.read_query(query)
        prompt = len(self.prompts["document"])
        features: list[np.ndarray] = []
        empty: list[bool] = []
        for document in cast(
            "Iterator[SentenceVectors]", map(memory.__getitem__, memory.documents)
        ):
            if self._passages and document.passages is None:
                raise InputError(
                    "this document was remembered for its sentences alone; let a Reranker"
                    " remember it"
                )
            features.append(
                relevance_features(asked, document, self.model.words, self.model.backbone, prompt)
            )
            empty.append(not len(document.ids))
        scores: np.ndarray = self.model.head("rerank")(np.stack(features))
        return np.where(empty, np.float32(WITHOUT_TOKENS), scores)

    def look(self, query: VectorQuery, document: SentenceVectors) -> Scored:
        """Score a document that has been read."""
        plain = np.full(len(document.spans), -np.inf, dtype=np.float32)
        full, vectors, features = self.inputs(query, document)
        plain[full] = self._head(query.vector, vectors, features)
        cosines = vectors @ query.vector
        judge = None if self.judging is None else self.judging.head
        codes = None
        if query.codes:
            codes = meet_codes(query.codes, document.text, document.spans)
        first = first_look(query.ids, document, plain, cosines, features, codes, judge)
        return Scored(document.text, document.spans, first.scores, document.kinds, first)

    def parts(self, query: VectorQuery, document: SentenceVectors, index: int) -> dict[str, float]:
        """Return the parts of a sentence's score (`VectorScore.parts`); none for a sentence without
        a token.
        """
        full, vectors, features = self.inputs(query, document)
        if not full[index]:
            return {}
        return self._head.parts(
            query.vector, vectors, features, int(np.count_nonzero(full[:index]))
        )

    def inputs(
        self, query: VectorQuery, document: SentenceVectors
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return which sentences have a token (S,), their n unit vectors (n, D), and their features
        (n, F).
        """
        full = np.diff(document.bounds) > 0
        if not full.any():
            return (
                full,
                np.zeros((0, document.vectors.shape[1]), np.float32),
                np.zeros((0, FEATURES), np.float32),
            )
        # of sentences with a token: an empty sentence has equal bounds
        features = sentence_features(
            document.ids, np.unique(document.bounds), query.ids, self.model.words
        )
        return full, normalize(document.sums() if full.all() else document.sums()[full]), features


def relevance_features(
    query: VectorQuery,
    document: SentenceVectors,
    words: WordTable,
    backbone: Blocks,
    prompt: int = 0,
) -> np.ndarray:
    """Return the features of `VectorRelevance`, (3,) float32: the best cosine of the query and a
    passage, the cosine of the query and the whole document, and `static_bm25`. All are zeros for a
    document without a token. `prompt`: the number of its tokens.
    """
    if not len(document.ids):
        return np.zeros(VectorRelevance.FEATURES, dtype=np.float32)
    passages = document.passage_sums(backbone, prompt)
    vectors = normalize(np.concatenate([passages, passages.sum(0, keepdims=True)]))
    *cosines, whole = (vectors @ query.text_vector).tolist()
    return np.array(
        [max(cosines), whole, static_bm25(document.ids, query.ids, words)], dtype=np.float32
    )
