"""Retrieval tasks: search or rerank, write the run query by query, and measure the run as written.

The parts of this file:

    Reading, expect_stride, windows  how much of queries and documents is read; long documents in
                                     segments (FirstP, LongP and MaxP, docs/evaluation.md)
    cut_sentences, split_chunks      pieces of a document for `evidence.py` and `qa/examination.py`
    System                           what is evaluated: a model, BM25 or a run, and how it searches
    kind_of, Options                 which of these a model is; the options of the command line
    recipe_of, as_in_recipe          a trained model reads as many tokens as its recipe says
    measure, _write_run              a task's run, written query by query, and the metrics of it:
        _rank_segments               candidates that a reranker reads in segments
        _search_all                  blocks of queries, by what `_searcher` returns: a search in an
                                     index, by BM25 or by vectors
    load_model, ApiEmbedder          the model of a system; an embedder behind an endpoint

A run, here, is a ranking as TREC writes it: lines with a query, a document and a score. A training
run is always called so.

Source of the segments: Dai and Callan, Deeper Text Understanding for IR with Contextual Neural
Language Modeling, 2019; paper C (State space models as rerankers), 4.3 and B.2.2. Here segments
have a number of tokens, not of words. Paper E is about full-context sentence retrieval
(docs/papers.md has both).
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from runnel.errors import InputError
from runnel.files import digest, file_digest
from runnel.generation.endpoint import Endpoint
from runnel.jobs.embedding import embed_corpus
from runnel.jobs.loading import DTYPES
from runnel.jobs.progress import notify, open_progress
from runnel.jobs.ranking import Candidates, rank_all
from runnel.jobs.runs import finish_run, lines_of, note_resumed
from runnel.journal import Journal, Row
from runnel.lab.evaluation.metrics import Measured, cutoff, evaluate, mean, parse_metrics, ranked
from runnel.lab.evaluation.published import Set
from runnel.lab.evaluation.tasks import Task, read_run_of, read_task
from runnel.lab.training import recipes
from runnel.lab.training.corpus import Texts
from runnel.lab.training.mining import bm25_ranker, dense_ranker
from runnel.lab.training.triples import expect_texts
from runnel.models.embedder import Embedder
from runnel.models.reranker import Reranker
from runnel.models.sentence_retriever import SentenceRetriever
from runnel.records import Document
from runnel.search.index import Index
from runnel.text.sentences import split_sentences
from runnel.text.tokenizer import Tokenizer
from runnel.text.trec import read_scores

API = "api:"  # before the name of an embedder behind an endpoint: `ApiEmbedder`
# Before the names of models that are embedders and nothing else. "st:" has sentence-transformers
# load the model, "st-code:" also lets it run code that comes with it.
EMBEDDERS = (API, "st:", "st-code:")
_TEXTS = 128  # texts of one request to an endpoint
_BLOCK = 256  # queries searched together
_CHECKPOINTS = {".pt", ".pth", ".bin", ".safetensors"}

# How a system ranks:
#
#     bm25       by the words of query and document
#     embed      by the vectors of an embedder
#     rerank     the candidates of each query, by a reranker
#     index      by vectors and words, in an index as of `runnel index`
#     sentences  the sentences of one document, by a sentence retriever: only in `evidence.py` and
#                `qa/examination.py`; `measure` is never given it (`run.py` refuses it)
#     run        not at all: `model` is the file of a finished run, which `measure` only reads
How = Literal["bm25", "embed", "rerank", "index", "sentences", "run"]
# yields for each query its documents with their scores, best first
SearchTexts = Callable[[Sequence[str]], Iterator[list[tuple[str, float]]]]


@dataclass(frozen=True)
class Reading:
    """How many tokens of queries and documents are read; None: all."""

    # the most tokens of a document, or for a reranker of query and document together, special
    # tokens included
    max_tokens: int | None = None
    max_query_tokens: int | None = None  # the most tokens of a query, for an embedder
    # The most tokens of a segment's text, for a reranker. None: documents are not read in segments,
    # and `stride` has no effect.
    segment_tokens: int | None = None
    # tokens from the start of a segment to the start of the next; None: segments do not overlap
    stride: int | None = None

    def __post_init__(self) -> None:
        if self.segment_tokens is not None and self.stride is not None:
            expect_stride(self.stride, self.segment_tokens)

    def settings(self) -> dict[str, object]:
        """Return the settings that scores depend on; {} if everything is read."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def cut(self, text: str, tokenizer: Tokenizer) -> list[str]:
        """Return the segments of a text, at least one; together they cover it."""
        assert self.segment_tokens is not None
        encoded = tokenizer.encode(text)
        count = len(encoded.ids)
        if count <= self.segment_tokens:
            return [text]
        cuts = windows(
            np.arange(count + 1), self.segment_tokens, self.stride or self.segment_tokens
        )
        pieces = [text[encoded.starts[first] : encoded.ends[last - 1]] for first, last in cuts]
        return [piece for piece in pieces if piece.strip()] or [text]


def expect_stride(stride: int, size: int) -> None:
    """Raise InputError unless windows of `size` tokens that begin each `stride` tokens together
    have every token.
    """
    if not 1 <= stride <= size:
        raise InputError(
            f"the stride is {stride:,} tokens; expected 1 to {size:,}, the tokens of a window or"
            " segment"
        )


def windows(bounds: np.ndarray, size: int, stride: int) -> list[tuple[int, int]]:
    """Return windows [first, last) of units, each of at most `size` tokens or one unit, that
    together have every unit. A unit is what is not cut: a token, or a sentence.

    A window begins `stride` tokens after the start of the window before it, or where that window
    ends, whichever is first; the last window ends with the text.

    Args:
        bounds: (units + 1,) int64, for each unit the number of tokens before it, and then the
            number of all tokens.

    For example, five sentences of 30, 30, 30, 80 and 10 tokens:

        >>> windows(np.array([0, 30, 60, 90, 170, 180]), size=70, stride=20)
        [(0, 2), (1, 3), (3, 4), (4, 5)]

    The first window has 60 tokens: a third sentence would make 90. The second may begin at token
    20, so it begins with sentence 1, at token 30. None begins with sentence 2, which would have to
    end with it and add nothing. Sentence 3 is longer than a window, and is one by itself.

    Source: paper E, section 5.4 (docs/papers.md): 120,000 and 60,000 tokens.
    """
    spans: list[tuple[int, int]] = []
    first = end = 0  # where the next window begins, and where the last one ended: units
    while end < len(bounds) - 1:
        # the most units that fit, or one
        last = max(first + 1, int(np.searchsorted(bounds, bounds[first] + size, side="right")) - 1)
        if last <= end:  # the window adds no unit, because the next one is too long for it
            first += 1
            continue
        spans.append((first, last))
        token = bounds[first] + stride
        # The first unit that begins there or later. Several begin there if all but the last have no
        # tokens: then it is the last (found by "right"), and the others stay in this window.
        following = max(
            int(np.searchsorted(bounds, token)),
            int(np.searchsorted(bounds, token, side="right")) - 1,
        )
        first = min(last, max(first + 1, following))
        end = last
    return spans


def cut_sentences(
    document: str, starts: np.ndarray, size: int, stride: int
) -> list[tuple[int, int]]:
    """Return the characters of `windows` of whole sentences; `starts` (T,): the character at which
    each token starts.
    """
    edges = np.append(split_sentences(document)[:, 0], len(document))
    return [
        (int(edges[first]), int(edges[last]))
        for first, last in windows(np.searchsorted(starts, edges), size, stride)
    ]


def split_chunks(document: str, words: int) -> np.ndarray:
    """Return the spans (n, 2) of chunks that tile a document; all but the last have `words` words.

    Source: paper E, 5.2 (docs/papers.md), whose embedders retrieve five chunks of 300 words.
    """
    starts = [
        0,
        *(match.start() for match in islice(re.finditer(r"\S+", document), words, None, words)),
    ]
    return np.array(list(pairwise([*starts, len(document)])), np.int64)


def recipe_of(model: str) -> recipes.Recipe | None:
    """Return the recipe of the training run that wrote a model, from the folder of the run: of
    FOLDER/model or FOLDER/checkpoints/NAME it is FOLDER/recipe.toml; None for other models.
    """
    folder = Path(model)
    in_checkpoints = folder.parent.name == "checkpoints"
    recipe = (folder.parent.parent if in_checkpoints else folder.parent) / "recipe.toml"
    is_of_training = in_checkpoints or folder.name == "model"
    return recipes.read(str(recipe)) if is_of_training and recipe.is_file() else None


@dataclass(frozen=True)
class System:
    """The system that is evaluated: a model, BM25 or a run, and how it searches."""

    model: str  # "bm25", a model's name or folder, or a run file
    how: How
    dtype: str = "auto"
    depth: int | None = None  # documents of a query; None: what the metrics look at, 100 at least
    candidates: str | None = None  # the run to rerank; None: BM25's best documents
    # A reranker reads all candidates once, keeps their states in RAM in 8 bits, and continues them
    # with each query. False: it does so only with a reranker that never reads query and document
    # together (`Reranker.reads_pairs`), if nothing is cut.
    remember: bool = False
    bm25: Mapping[str, float] = field(default_factory=dict)  # k1 and b, each only if it is given
    search: Mapping[str, float] = field(default_factory=dict)  # options of `Index.search`, likewise
    prompts: Mapping[str, str] = field(default_factory=dict)  # "query" and "document", likewise
    reading: Reading = field(default_factory=Reading)
    # The next two are of `evidence.py` and `qa/examination.py`, which rank parts of one document.
    context: int | None = None  # tokens that a sentence retriever reads together; None: all
    chunk_words: int | None = None  # rank chunks of this many words; None: sentences
    vectors: str | None = None  # vectors of the documents, from `runnel embed`; None: compute them


def kind_of(model: str, how: How | None) -> How | None:
    """Return as what a model is evaluated (`How`): "bm25" for BM25, "run" for a file that is no
    checkpoint, otherwise `how`, as the user says; None: the user says nothing, and the task
    decides.

    Raises InputError if the user wants BM25 or a run evaluated as something else.
    """
    kind: How | None = None
    if model == "bm25":
        kind = "bm25"
    elif Path(model).is_file() and Path(model).suffix not in _CHECKPOINTS:
        kind = "run"
    if kind is not None and how is not None:
        raise InputError(
            f"{model} is {'BM25' if kind == 'bm25' else 'a run'}, so it cannot be evaluated as"
            f" {how}; leave --as out"
        )
    return kind or how


class Options:
    """The options that a user has given, by the names of their parameters. None and "auto" count as
    not given. An option that no system of the evaluation takes is refused.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.given = {n: value for n, value in options.items() if value not in (None, "auto")}
        self._taken: set[str] = set()

    def take(self, *names: str, **renamed: str) -> dict[str, Any]:
        """Return the options with these names that are given, and those of `renamed` under other
        names: take("dtype", prompt="query") returns --dtype as "dtype" and --prompt as "query".
        """
        taken = {name: name for name in names} | renamed
        self._taken |= taken.keys()
        return {new: self.given[name] for name, new in taken.items() if name in self.given}

    def refuse_others(self, evaluated: str) -> None:
        """Raise InputError for an option that has no effect on what is evaluated."""
        if unused := next((name for name in self.given if name not in self._taken), None):
            # one parameter has another name than its option, --as
            name = "as" if unused == "how" else unused.replace("_", "-")
            raise InputError(
                f"--{name} has no effect on what is evaluated ({evaluated}); leave it out"
            )


def as_in_recipe(system: System) -> System:
    """Return a system that reads as many tokens as the recipe of its model says, where the user has
    not said it.
    """
    recipe = recipe_of(system.model)
    if recipe is None or recipe.job != system.how:
        return system
    asked = system.reading
    table = recipe.evaluation
    recorded: dict[str, Any] = {}
    if asked.max_tokens is None and asked.segment_tokens is None and not system.remember:
        recorded["max_tokens"] = table.max_tokens or table.max_document_tokens
    if asked.max_query_tokens is None:
        recorded["max_query_tokens"] = table.max_query_tokens
    recorded = {name: value for name, value in recorded.items() if value is not None}
    if settings := ", ".join(f"{name} {value}" for name, value in recorded.items()):
        notify(f"note: as in the recipe of {system.model}: {settings}")
    return replace(system, reading=replace(asked, **recorded))


def measure(task_set: Set, system: System, names: Sequence[str] | None, folder: Path) -> Measured:
    """Return the result of a set, as it is in results.json, and the metrics of each of its queries;
    write the run to FOLDER/NAME.trec.

    Args:
        task_set: finds or writes the files of a task; `read_task` reads them as a `Task`.
        names: of metrics; None: the set's own.

    The result says what was evaluated on what ("task", "model", "as", "queries", "documents",
    "depth", "reading", "notes") and the means over queries ("metrics"). docs/evaluation.md lists
    the keys.
    """
    # 1. the queries, judgments and documents
    metrics = parse_metrics(task_set.metrics if names is None else names)
    source = task_set.source(folder)
    if system.how != "run":
        expect_texts(source.qrels, {"--corpus": source.corpus, "--queries": source.queries})
    task = read_task(source)
    # 2. notes for the user
    notes = list(task.notes)
    depth = system.depth or max(100, cutoff(metrics))
    if system.how != "run" and depth < cutoff(metrics):
        notes.append(
            f"{depth:,} documents of a query are kept; the metrics look at {cutoff(metrics):,}"
        )
    for note in notes:
        notify(f"note: {source.name}: {note}")
    # 3. the run, and its metrics
    if system.how == "run":
        run = read_run_of(Path(system.model), task)
    else:
        system = replace(system, depth=depth)
        run = read_scores(_write_run(task, system, folder, f"{source.name}.trec"))
    values = evaluate(metrics, task.qrels, run)
    return {
        "task": source.name,
        "kind": "retrieval",
        "model": system.model,
        "as": system.how,
        "queries": len(task.qrels),
        "group": task_set.group,
        "documents": None if task.corpus is None else len(task.corpus),
        "depth": None if system.how == "run" else depth,
        "reading": system.reading.settings() | ({"remember": True} if system.remember else {}),
        "notes": notes,
        "metrics": mean(values),
    }, values


def _write_run(task: Task, system: System, folder: Path, name: str) -> Path:
    """Let a system search or rerank for all queries, unless that is done; return the path of the
    run, FOLDER/NAME. A run that was interrupted is continued, but only with equal `settings`.
    """
    out = folder / name
    settings: dict[str, object] = {
        "model": system.model,
        "as": system.how,
        "depth": system.depth,
        "texts": [
            None if file is None else file_digest(str(file))
            for file in (task.source.corpus, task.source.queries)
        ],
        "queries": digest(*task.queries),
        **system.bm25,
        **system.search,
        **({} if system.vectors is None else {"vectors": system.vectors}),
        "prompts": dict(system.prompts),
        **system.reading.settings(),
    }
    candidates: dict[str, list[str]] = {}
    if system.how == "rerank":
        if system.candidates:
            path = Path(system.candidates)
            run = read_run_of(path, task)
        else:
            # BM25 reads the whole texts, however much the reranker reads
            by_words = replace(system, model="bm25", how="bm25", reading=Reading())
            path = _write_run(task, by_words, folder, f"{task.source.name}.bm25.trec")
            run = read_scores(path)
        candidates = {
            query: ranked(run[query])[: system.depth] for query in task.queries if query in run
        }
        settings |= {"candidates": file_digest(str(path)), "remember": system.remember}
    # `Candidates.read` is called with the candidates whose texts are wanted
    documents = Candidates(task.queries, candidates, partial(_CorpusTexts, task.corpus))
    # The journal compares these settings with those of earlier work before the model is loaded, and
    # in `begin` all of them, with the model's fingerprint.
    with Journal(out, settings) as journal:
        model = load_model(system)
        # no model behind an endpoint, which would have no fingerprint, comes here: `run.system_for`
        settings["fingerprint"] = None if model is None else model.model.fingerprint()
        if journal.begin(**settings) is not None:  # the facts of a run that is finished
            notify(f"note: {out} is finished already")
        elif system.how == "rerank" and system.reading.segment_tokens is not None:
            scored = _rank_segments(folder, name, documents, model, system.reading, settings)
            journal.add(*(Row(query, lines_of(query, hits)) for query, hits in scored))
            finish_run(journal, {"count": len(candidates)})
        elif system.how == "rerank":
            longest = system.reading.max_tokens
            # Without pairs a document is read alone, whatever the query: reading each once is
            # enough. What is remembered is never cut.
            remember = system.remember or (longest is None and not model.reads_pairs)
            rank_all(journal, documents, model, remember=remember, max_tokens=longest)
        else:
            _search_all(journal, task, _searcher(task, system, model, folder))
    return out


def _rank_segments(
    folder: Path,
    name: str,
    documents: Candidates,
    reranker: Reranker,
    reading: Reading,
    settings: Mapping[str, object],
) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Score the segments of all candidates, which have ids such as "d1#0"; yield the documents of
    each query with the score of their best segment, best first.
    """
    with Journal(folder / f"{Path(name).stem}.segments.trec", settings) as journal:
        if journal.begin() is None:  # not finished
            pieces = partial(reading.cut, tokenizer=reranker.model.tokenizer)
            rank_all(journal, documents, reranker, remember=False, pieces=pieces)
    for query, scores in read_scores(journal.out).items():
        best: dict[str, float] = {}
        for segment, score in scores.items():
            document = segment.rpartition("#")[0]
            best[document] = max(best.get(document, -math.inf), score)
        yield query, sorted(best.items(), key=lambda item: -item[1])


def _search_all(journal: Journal, task: Task, search: SearchTexts) -> None:
    """Write the documents of each query that the journal does not have, `_BLOCK` queries at a time;
    then the run.
    """
    note_resumed(journal, "query")
    done = {row.key for row in journal.rows()}
    remaining = ((query, text) for query, text in task.queries.items() if query not in done)
    with open_progress("searching", "queries") as progress:
        blocks = iter(lambda: list(islice(remaining, _BLOCK)), [])
        rankings = (
            pair
            for block in blocks
            for pair in zip(block, search([text for _, text in block]), strict=True)
        )
        for (query, _), hits in progress.count(rankings):
            # 9 digits, which keep a score of float32 exactly
            journal.add(Row(query, lines_of(query, hits, ".9g")))
    finish_run(journal, {"count": len(task.queries)})


def _searcher(task: Task, system: System, model: Any, folder: Path) -> SearchTexts:
    """Return the search of a system that is an index, BM25 or an embedder. `model` is what
    `load_model` returns; `folder` gets an index or vectors that are made for the search.
    """
    corpus = task.corpus
    depth = system.depth
    reading = system.reading
    assert corpus is not None and depth is not None
    if system.how == "index":
        # made of the corpus, or completed
        index = Index.open_or_create(folder / f"{task.source.name}.index", model)
        with index, open_progress("indexing") as meter:
            documents = (Document(document.id, document.text) for document in corpus)
            failed = index.add(documents, progress=meter).failed
        if failed:
            notify(
                f"warning: {len(failed):,} documents are not in {index.store.uri}:"
                f" {next(iter(failed.values()))}"
            )

        def search_index(queries: Sequence[str]) -> Iterator[list[tuple[str, float]]]:
            for query in queries:
                hits = index.search(query, depth, sentences=0, **dict[str, Any](system.search))
                yield [(hit.id, hit.score) for hit in hits]

        return search_index
    if system.how == "bm25":
        with open_progress("indexing", "documents") as progress:
            rank = bm25_ranker(corpus, progress, **system.bm25)
    else:
        # `rows`: for each vector, the row in the corpus of its document. Empty texts have no
        # vector. `stored`: the file of `runnel embed` that the user gives; None: they are computed.
        vectors, rows = embed_corpus(
            model,
            corpus,
            folder / f"{task.source.name}.vectors.npy",
            {
                # without the limit of queries: with another, the vectors are the same
                **replace(reading, max_query_tokens=None).settings(),
                "corpus": file_digest(str(task.source.corpus)),
                "fingerprint": model.model.fingerprint(),
                "prompt": model.model.prompts.get("document", ""),
            },
            reading.max_tokens,
            stored=system.vectors,
        )
        rank = dense_ranker(model, vectors, rows, reading.max_query_tokens)

    def search(queries: Sequence[str]) -> Iterator[list[tuple[str, float]]]:
        for rows, scores in rank(queries, depth):
            yield list(zip(map(corpus.name, rows), scores.tolist(), strict=True))

    return search


class _CorpusTexts(Mapping[str, str]):
    """The texts of candidates, each read from the corpus when it is used."""

    def __init__(self, corpus: Texts | None, candidates: Mapping[str, Sequence[str]]) -> None:
        assert corpus is not None
        self._corpus = corpus
        self._names = dict.fromkeys(name for ids in candidates.values() for name in ids)

    def __getitem__(self, name: str) -> str:
        return self._corpus.get(name) or ""

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class ApiEmbedder:
    """An embedder behind an endpoint, POST URL/embeddings, at $OPENAI_BASE_URL or OpenAI's URL.

    It encodes as an `Embedder` does, but has no `model`: weights, tokenizer and fingerprint are
    known only to the endpoint, which therefore also cuts texts; `max_tokens` has no effect.
    """

    def __init__(self, name: str, *, prompts: Mapping[str, str] | None = None) -> None:
        self.prompts = dict(prompts or {})
        self._endpoint = Endpoint(model=name)

    def is_empty(self, text: str) -> bool:
        return not text.strip()

    def encode_query(self, texts: Sequence[str], max_tokens: int | None = None) -> np.ndarray:
        """Return unit vectors of queries, float32 (n, d)."""
        return self._encode(texts, "query")

    def encode_document(self, texts: Sequence[str], max_tokens: int | None = None) -> np.ndarray:
        """Return unit vectors of documents, float32 (n, d)."""
        return self._encode(texts, "document")

    def _encode(self, texts: Sequence[str], kind: str) -> np.ndarray:
        prompted = [self.prompts.get(kind, "") + text for text in texts]
        rows = [
            vector
            for start in range(0, len(prompted), _TEXTS)
            for vector in self._endpoint.embed(prompted[start : start + _TEXTS])
        ]
        vectors = np.asarray(rows, np.float32)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


@lru_cache(maxsize=1)  # checkpoints are evaluated one after the other
def _model(how: How, name: str, dtype: str, prompts: tuple[tuple[str, str], ...]) -> Any:
    """Load a model once for the tasks of an evaluation; `prompts` are pairs because a cache needs
    what can be hashed. The type is Any because it depends on `how`: see `load_model`.
    """
    if how == "rerank":
        return Reranker.load(name, dtype=DTYPES[dtype])
    if how == "sentences":
        return SentenceRetriever.load(name, dtype=DTYPES[dtype])
    if how == "embed" and name.startswith(API):
        return ApiEmbedder(name.removeprefix(API), prompts=dict(prompts))
    embedder = Embedder.load(name, dtype=DTYPES[dtype])
    # this changes only the object that is cached under these prompts
    embedder.model.prompts |= dict(prompts)
    return embedder


def load_model(system: System) -> Any:
    """Return the model of a system: a `Reranker` for "rerank", a `SentenceRetriever` for
    "sentences", None for "bm25", otherwise an `Embedder`, or for "api:NAME" an `ApiEmbedder`.

    Only `evidence.py` is ever given an `ApiEmbedder`, which has no `model`: see `run.system_for`.
    """
    if system.how == "bm25":
        return None
    return _model(system.how, system.model, system.dtype, tuple(system.prompts.items()))
