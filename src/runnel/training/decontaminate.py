"""Training examples that overlap with test sets, found by equal sentences and equal texts.

Two texts are equal if their words are, in order; case, punctuation and white space do not count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from runnel.text.sentences import split_sentences
from runnel.training.data import Dropped, Evidence, Triple, read_evidence, read_triples
from runnel.training.formats import qrels_of
from runnel.training.lines import read_json, read_lines

Example = TypeVar("Example", Triple, Evidence)

QUERY, POSITIVE, SENTENCES = "query in a test set", "positive in a test set", "document shares sentences with a test set"

_SHARE = 0.01
_MIN_WORDS = 5
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
)  # scripts without spaces between words


class Decontaminator:
    """Tells which examples overlap with test sets.

    An evidence example does if more than 1 % of its document's sentences occur in a test document (paper: Full-context
    sentence retrieval, section 4.3); a triple does if its query is a test query or one of its positives is a test document.
    Sentences and positives of less than five words ("Yes.", "Materials and Methods") do not count; where a script puts no
    spaces between words, two characters are taken for one.

    Args:
        paths: test sets in any format of `read_triples` or `read_evidence`; of a BEIR folder all qrels but train. Only the
            documents that answer a test query count, as training and test sets may share a corpus.

    Raises:
        InputError, ReadError: as those readers.
    """

    def __init__(self, paths: Iterable[str | Path]) -> None:
        self.counts: Counter[str] = Counter()  # contaminated examples, by reason
        self._queries: set[int] = set()  # hashes, which take less memory than texts
        self._documents: set[int] = set()
        self._sentences: set[int] = set()
        self._read: set[int] = set()
        self._last = "", False
        for path in paths:
            self._add(path)

    def contaminated(self, example: Triple | Evidence) -> bool:
        """Whether the example must not be trained on; counted if so."""
        reason = self._overlap(example)
        if reason is not None:
            self.counts[reason] += 1
        return reason is not None

    def clean(self, examples: Iterable[Example]) -> Iterator[Example]:
        """The examples that are not contaminated."""
        return (example for example in examples if not self.contaminated(example))

    def __str__(self) -> str:
        return "; ".join(f"{count:,} {reason}" for reason, count in self.counts.most_common()) or "no overlap with test sets"

    def _add(self, path: str | Path) -> None:
        if "evidence" in _first_row(Path(path)):
            for evidence in read_evidence(path, dropped=Dropped()):
                self._add_example(evidence.query, [evidence.document])
        else:
            for split in _splits(Path(path)):
                for triple in read_triples(split, dropped=Dropped()):
                    self._add_example(triple.query, triple.positives)

    def _add_example(self, query: str, documents: Iterable[str]) -> None:
        self._queries.add(_hash(query))
        for text in documents:
            if hash(text) not in self._read:  # many queries have the same document
                self._read.add(hash(text))
                self._documents.add(_hash(text))
                self._sentences.update(_sentences(text))

    def _overlap(self, example: Triple | Evidence) -> str | None:
        if isinstance(example, Evidence):
            return SENTENCES if self._shares_sentences(example.document) else None
        if _hash(example.query) in self._queries:
            return QUERY
        return POSITIVE if any(_counts(t) and _hash(t) in self._documents for t in example.positives) else None

    def _shares_sentences(self, document: str) -> bool:
        if document != self._last[0]:  # lines of one document are next to each other
            sentences = _sentences(document)
            common = sum(key in self._sentences for key in sentences)
            self._last = document, common > _SHARE * len(sentences)
        return self._last[1]


def _sentences(text: str) -> list[int]:
    pieces = [text[start:end] for start, end in split_sentences(text).tolist()]
    return [_hash(piece) for piece in pieces if _counts(piece)]


def _counts(text: str) -> bool:
    return len(_words(text)) + len(_UNSPACED.findall(text)) // 2 >= _MIN_WORDS


def _hash(text: str) -> int:
    return hash(" ".join(_words(text)) or text.strip())


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _first_row(path: Path) -> dict[str, object]:
    """The first row if this is a file of JSON."""
    if path.is_dir():
        return {}
    _, line = next(read_lines(path), ("", ""))
    return next(read_json(path))[1] if line.startswith("{") else {}


def _splits(path: Path) -> list[Path]:
    """Of a BEIR folder every qrels but those for training."""
    if not path.is_dir():
        return [path]
    splits = qrels_of(path)
    return [p for p in splits if not p.name.startswith("train")] or splits
