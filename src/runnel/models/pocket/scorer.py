"""Scores from stored vectors: of a document's sentences, and of whole documents.

S  sentences of a document   D  width of the vectors   F  lexical features
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from runnel.backbones.config import Blocks
from runnel.backbones.encoder.config import Form
from runnel.checks import expect_text
from runnel.errors import InputError
from runnel.models.head import WITHOUT_TOKENS
from runnel.models.memory import Memory, StatePrecision
from runnel.models.model import Model
from runnel.models.pocket.heads import VectorRelevance, VectorScore, normalize
from runnel.models.pocket.layout import lay_out
from runnel.models.pocket.lexical import FEATURES, WordTable, sentence_features, static_bm25
from runnel.models.pocket.looks import FACTS, Judging, document_facts, first_look
from runnel.models.pocket.sentence_vectors import SentenceSums, SentenceVectors
from runnel.models.scored import Scored
from runnel.models.scoring import sentence_tokens
from runnel.request import Progress, Request, TokenCount
from runnel.text.documents.document import DocumentText
from runnel.text.sentences import SentenceTokens, read_sentences


@dataclass(frozen=True)
class VectorQuery:
    """A query that has been read: its ids, its vector (D,) for sentences, and the one for passages
    and whole documents.
    """

    ids: np.ndarray
    vector: np.ndarray
    text: np.ndarray


class VectorScorer:
    """A reader of documents into `SentenceVectors`, which it scores; `passages`: also of passages,
    as texts.

    Where sentences have no layers of their own, the vectors of passages are sums of theirs, and
    nothing more is stored.
    """

    remembers = True
    kind = SentenceVectors
    reads_pairs = False

    def __init__(self, model: Model, *, passages: bool = False) -> None:
        head = model.head("sentences")  # an encoder has it `for_sentences`
        assert isinstance(head, VectorScore)
        self.model, self._head = model, head
        self._passages = passages and model.backbone.own_sentences
        self._forms: tuple[Form, ...] = ("texts", "sentences") if self._passages else ("sentences",)
        self.template = model.templates["document"]
        self.prompts = {name: model.prompt_ids(name) for name in ("query", "document")}
        self.judging = Judging(model) if "judge" in model.heads else None

    @property
    def calibrated(self) -> bool:
        """Whether a score's sigmoid is a probability."""
        return (self._head if self.judging is None else self.judging.head).calibrated

    def read_query(self, query: str) -> VectorQuery:
        """Read a query, a long one in passages, like a document."""
        return next(self.read_queries([query]))

    def read_queries(self, queries: Iterable[str]) -> Iterator[VectorQuery]:
        """Read queries, in order."""
        for result in self.model.engine_for(*self._forms).map(map(self._query_request, queries)):
            done = result.get()
            means = np.asarray(done.means[0])
            vectors = normalize(means.reshape(-1, self.model.backbone.hidden_size))
            yield VectorQuery(done.tag, vectors[-1], vectors[0])

    def _query_request(self, query: str) -> Request:
        expect_text(query, "the query")
        query = query.strip()
        if len(self.prompts["query"]) and not self.model.tokenizer.adds_space:
            query = " " + query
        ids = self.template.encode_query(self.model.tokenizer, query)
        tokens = read_sentences(
            query, [self.template.encode(self.model.tokenizer, "document", query)]
        )
        markers = self.model.tokenizer.markers()
        prompt = self.prompts["query"]
        row = lay_out(ids, tokens.bounds, self.model.backbone, markers, prompt=prompt).ids
        return Request(row, ranges=np.array([[0, len(row)]]), tag=ids)

    def read(
        self, documents: Iterable[SentenceTokens], progress: Progress | None = None
    ) -> Iterator[SentenceVectors]:
        """Read documents in order; an empty document has no sentences."""
        count = TokenCount(progress)
        sums = (SentenceSums(self.model, tokens, passages=self._passages) for tokens in documents)
        requests = count.totaled(
            Request(part.layout.ids, (), take=part.take, tag=part) for part in sums
        )
        for result in self.model.engine_for(*self._forms).map(requests, count.add):
            yield result.get().tag.result()

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
        """Read documents to remember them; `precision` is of states, which there are none of."""
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
        plain = np.full(len(document), -np.inf, dtype=np.float32)
        full, vectors, features = self.inputs(query, document)
        evidence = np.zeros(FACTS)
        if full.any():
            plain[full] = self._head(query.vector, vectors, features)
            evidence = document_facts(plain[full], vectors @ query.vector, features)
        look = first_look(query.ids, document, plain, evidence, lead=self.judging is not None)
        return Scored(document.text, document.spans, look.scores, document.kinds, look)

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
        # of the full ones
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
    """Return the features of `VectorRelevance`, (3,) float32; zeros for a document without a token.
    `prompt`: its tokens.
    """
    if not len(document.ids):
        return np.zeros(VectorRelevance.FEATURES, dtype=np.float32)
    passages = document.passage_sums(backbone, prompt)
    vectors = normalize(np.concatenate([passages, passages.sum(0, keepdims=True)]))
    *cosines, whole = (vectors @ query.text).tolist()
    return np.array(
        [max(cosines), whole, static_bm25(document.ids, query.ids, words)], dtype=np.float32
    )
