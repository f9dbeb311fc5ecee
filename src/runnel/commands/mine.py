"""`runnel mine`: training examples with hard negatives.

While the work lasts, OUT.part has a line for each example so far: the line of OUT and the counts of refused candidates.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from runnel.commands.display import Meter, note_compiling, print_json, print_text, say
from runnel.commands.embed import Work
from runnel.commands.resume import Output, appending, beside, file_digest, text_digest
from runnel.commands.vectors import VectorLog, vector_output
from runnel.errors import InputError
from runnel.files import replacing
from runnel.records import Document
from runnel.text.trec import read_run
from runnel.training.candidates import K1, B, Search, bm25_search, dense_search, run_search
from runnel.training.corpora import Texts, read_corpus
from runnel.training.data import Dropped, Triple, read_triples
from runnel.training.decontaminate import Decontaminator
from runnel.training.formats import Format, find_source
from runnel.training.mining import Judge, Mined, Mining, mine

if TYPE_CHECKING:
    from runnel.models.embedder import Embedder


def run(
    data: str,
    to: str,
    *,
    format: Format | None,
    corpus: str | None,
    queries: str | None,
    model: str | None,
    candidates: str | None,
    judge: str | None,
    exclude: Sequence[str],
    k1: float | None,
    b: float | None,
    prompt: str | None,
    document_prompt: str | None,
    ranks: str,
    as_json: bool,
    **drawing: float | None,
) -> int:
    """Write the examples of `data` with negatives drawn from what a search finds for their queries.

    Args:
        candidates: a run to draw from in place of a search.
        k1, b: of BM25.
        prompt, document_prompt: put before the texts that the embedder reads, in place of its own; that of the search, or if an
            embedder only judges, its.
        drawing: the settings of `Mining` besides ranks.
    """
    out = Path(to)
    mining = Mining(ranks=_parse_ranks(ranks), **drawing)  # type: ignore[arg-type]
    bm25 = {name: value for name, value in (("k1", k1), ("b", b)) if value is not None}
    own = {name: text for name, text in (("query", prompt), ("document", document_prompt)) if text is not None}
    dense = model not in (None, "bm25")
    _check_options(mining, model, candidates, judge, bm25=bool(bm25), prompts=bool(own))
    source = find_source(data, corpus, queries)
    searcher = _load(model, own) if dense else None
    judging = searcher if judge is None else _load(judge, {} if dense else own)
    if not dense and candidates is None:
        bm25 = {"k1": K1, "b": B, **bm25}
    settings: dict[str, object] = {
        "files": [_digest(f) for f in (source.path, source.corpus, source.queries, candidates, *exclude)],
        "format": format,
        "model": model or (None if candidates else "bm25"),
        "judge": judge,
        "fingerprints": [e and e.model.backbone.fingerprint() for e in (searcher, judging)],
        "prompts": [e and _prompts(e) for e in (searcher, judging)],
        **bm25,
        **asdict(mining),
        "ranks": list(mining.ranks),
    }
    with Output(out) as output:
        facts = output.begin(settings)
        if facts is not None:
            say(f"note: {out} is finished already")
        else:
            examples = _Examples(data, format, corpus, queries, exclude)
            pool_from = settings["files"] if source.corpus is None else [_digest(source.corpus)]
            vectors = None if searcher is None else _embed(searcher, examples.pool, beside(out, ".vectors.npy"), pool_from)
            ranked = None if candidates is None else read_run(candidates, mining.ranks[1])
            search = _search(examples.pool, ranked, searcher, vectors, bm25)
            by = None if judging is None else _judge(judging, examples.pool, vectors if judging is searcher else None)
            facts = output.end({**examples.facts, **_draw(examples, output, search, mining, by)})
            _tell(facts, mining.number)
    if as_json:
        print_json({"out": to, **facts})
    else:
        print_text(f"{to}: {facts['examples']:,} examples, {facts['drawn']:,} negatives drawn")
    return 0


def _check_options(
    mining: Mining, model: str | None, candidates: str | None, judge: str | None, *, bm25: bool, prompts: bool
) -> None:
    """Raise InputError for options that contradict each other or would have no effect."""
    dense = model not in (None, "bm25")
    if candidates is not None and model is not None:
        raise InputError("negatives come from a run or from a search: give --run or --model, not both")
    if judge is not None and not mining.needs_scores:
        raise InputError("--judge does nothing without --max-score, --margin or --relative-margin; give one of them")
    if mining.needs_scores and judge is None and not dense:
        raise InputError("--max-score, --margin and --relative-margin compare an embedder's scores; give --judge or --model too")
    if bm25 and (dense or candidates is not None):
        raise InputError("--k1 and --b are settings of BM25, which does not search here; leave them, or --model and --run, out")
    if prompts and judge is None and not dense:
        raise InputError(
            "--prompt and --document-prompt are put before texts that an embedder reads; give --model or --judge too"
        )


class _Examples:
    """The examples of the data that can be used, read anew each time, and the pool of documents to draw from.

    The pool is the corpus if there is one, else every text of the examples, each once.
    """

    def __init__(self, data: str, format: Format | None, corpus: str | None, queries: str | None, exclude: Sequence[str]) -> None:
        self._data, self._format, self._queries = data, format, queries
        path = find_source(data, corpus, queries).corpus
        self._corpus = None if path is None else Texts(read_corpus(path))  # type: ignore[arg-type]
        self._guard = Decontaminator(exclude)
        self.pool = self._corpus if self._corpus is not None else Texts(_distinct(iter(self)))
        dropped = Dropped()
        self.total = sum(1 for _ in self._read(dropped))
        self.facts = {"dropped": dict(dropped.counts), "contaminated": dict(self._guard.counts)}
        if not self.total:
            raise InputError(f"{data}: no example is left to mine for ({dropped}; {self._guard})")

    def __iter__(self) -> Iterator[Triple]:
        return self._read(Dropped())

    def _read(self, dropped: Dropped) -> Iterator[Triple]:
        self._guard.counts.clear()
        triples = read_triples(self._data, self._format, corpus=self._corpus, queries=self._queries, dropped=dropped)
        return self._guard.clean(triples)


def _distinct(triples: Iterator[Triple]) -> Iterator[Document]:
    seen: set[str] = set()
    for triple in triples:
        for text in (*triple.positives, *triple.negatives):
            if (key := text_digest(text)) not in seen:
                seen.add(key)
                yield Document(key, text)


def _embed(embedder: Embedder, pool: Texts, path: Path, files: object) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of the documents with a text, on disk beside the output, and their rows in the pool."""
    settings = {"files": files, "fingerprint": embedder.model.backbone.fingerprint(), "prompt": _prompts(embedder)["document"]}
    with vector_output(path) as output:
        if output.begin(settings) is None:
            with VectorLog(output, embedder.dimension) as log:
                Work(embedder, log, prompt="document", max_tokens=None).run(pool)
                log.finish()
    rows = np.array([row for row, document in enumerate(pool) if document.text.strip()], dtype=np.int64)
    return np.load(path, mmap_mode="r"), rows


def _search(
    pool: Texts,
    ranked: dict[str, list[str]] | None,
    embedder: Embedder | None,
    vectors: tuple[np.ndarray, np.ndarray] | None,
    bm25: Mapping[str, float],
) -> Search:
    if ranked is not None:
        return run_search(ranked, pool)
    if embedder is not None and vectors is not None:
        return dense_search(embedder, *vectors)
    with Meter("indexing", unit="documents") as meter:
        return bm25_search(pool, meter, **bm25)


def _judge(embedder: Embedder, pool: Texts, known: tuple[np.ndarray, np.ndarray] | None) -> Judge:
    if known is None:
        return Judge(embedder, pool)
    vectors, places = known
    return Judge(embedder, vectors=lambda rows: vectors[np.searchsorted(places, rows)])


def _draw(examples: _Examples, output: Output, search: Search, mining: Mining, judge: Judge | None) -> dict[str, object]:
    """Mine what is not mined yet, write OUT, and count."""
    (part,) = output.parts
    done = _trim(part)
    if done:
        say(f"note: going on after {done:,} examples of an earlier run")
    with Meter("mining", unit="queries") as meter, appending(part) as append:
        for number, mined in enumerate(mine(examples, examples.pool, search, mining, judge, start=done), start=1):
            append(_line(mined).encode())
            meter(number, examples.total - done)
    refused: Counter[str] = Counter()
    drawn = fewer = 0
    with part.open(encoding="utf-8") as lines, replacing(output.path) as new, new.open("wb") as file:
        for line in lines:
            row = json.loads(line)
            refused.update(row.pop("refused"))
            drawn, fewer = drawn + row["drawn"], fewer + (row.pop("drawn") < mining.number)
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    return {"examples": examples.total, "drawn": drawn, "examples_with_fewer": fewer, "refused": dict(refused)}


def _line(mined: Mined) -> str:
    triple = mined.triple
    row: dict[str, object] = {"id": triple.id} if triple.id else {}
    row |= {"prompt": triple.instruction} if triple.instruction else {}
    row |= {"query": triple.query, "pos": triple.positives, "neg": [*triple.negatives, *mined.drawn]}
    return json.dumps(row | {"drawn": len(mined.drawn), "refused": mined.refused}, ensure_ascii=False) + "\n"


def _trim(part: Path) -> int:
    """Cut the part file back to whole lines; their number."""
    if not part.exists():
        return 0
    count = size = 0
    with part.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                count, size = count + 1, size + len(line)
    os.truncate(part, size)
    return count


def _tell(facts: Mapping[str, Any], number: int) -> None:
    for name, what in (("dropped", "left out of the data"), ("contaminated", "left out"), ("refused", "candidates refused")):
        if facts[name]:
            say(f"note: {what}: {'; '.join(f'{count:,} {reason}' for reason, count in facts[name].items())}")
    if facts["examples_with_fewer"]:
        say(f"warning: {facts['examples_with_fewer']:,} of {facts['examples']:,} examples got fewer than {number} negatives")


def _parse_ranks(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal()):
        raise InputError(f"--ranks must be FIRST-LAST, like 1-100, got {text!r}")
    return int(first), int(last)


def _digest(path: object) -> str | None:
    """Of a file its content; a folder is known by its name."""
    if path is None:
        return None
    return file_digest(str(path)) if Path(str(path)).is_file() else str(path)


def _load(model: str | None, prompts: Mapping[str, str]) -> Embedder:
    note_compiling()
    from runnel.models.embedder import Embedder

    embedder = Embedder.load(str(model))
    embedder.model.prompts |= prompts
    return embedder


def _prompts(embedder: Embedder) -> dict[str, str]:
    return {name: embedder.model.prompts.get(name, "") for name in ("query", "document")}
