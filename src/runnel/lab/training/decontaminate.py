"""Leave out training examples that overlap with test sets, found by equal sentences and texts.

Two texts are equal if they have the same words in the same order; case, punctuation and whitespace
do not count.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from runnel.errors import InputError, counted
from runnel.files import digest
from runnel.formats import ROWS
from runnel.jobs.progress import inform
from runnel.lab.training.data import Dropped, Evidence, Triple
from runnel.lab.training.triples import column_names, qrels_of, read_named, read_triples
from runnel.records import titled
from runnel.text.documents.document import HEAD_BYTES, recognize
from runnel.text.documents.reader import DocumentReader
from runnel.text.folders import Selection, find_files
from runnel.text.lines import read_head, text_of, texts_of
from runnel.text.sentences import split_sentences
from runnel.text.words import UNSPACED_RUN

Example = TypeVar("Example", Triple, Evidence)

# reasons to leave an example out; the noun before the first space is counted (`__str__`)
QUERY = "query in a test set"
POSITIVE = "positive in a test set"
SENTENCES = "document with sentences of a test set"

_QUERIES = {"question", "query"}  # keys of the query in rows with a query and a document
_QA = "qa:"  # the prefix of the path of question answering sets
_MOST_SHARE = 0.01  # of a document's sentences that may be in a test document
_LEAST_WORDS = 5  # of a sentence or a positive that counts


class Decontaminator:
    """A filter for examples that overlap with test sets.

    An evidence example overlaps if more than 1 % of its document's sentences occur in a test
    document (paper E, section 4.3: docs/papers.md); a triple overlaps if its query
    is a test query or one of its positives is a test document. Sentences and positives of fewer
    than five words ("Yes.", "Materials and Methods") do not count; in scripts without spaces
    between words, two characters count as one word.

    The paper compares sentences as strings. Here case, punctuation and whitespace do not count, so
    more is removed.

    Args:
        paths: test sets: files in a format of `read_triples`; rows of a query and a document, with
            or without evidence; rows with a "text"; any file that `DocumentReader` reads; folders
            of these. From a BEIR folder all qrels except train are used, and only documents that
            answer a test query, as training and test sets may share a corpus. Question answering
            sets are given as qa:PATH.

    Raises InputError if a test set has nothing to compare with, and what its readers raise.
    """

    def __init__(self, paths: Iterable[str | Path]) -> None:
        self.counts: Counter[str] = Counter()  # contaminated examples, by reason
        self._queries: set[int] = set()  # hashes, which take less memory than texts
        self._documents: set[int] = set()
        self._sentences: set[int] = set()
        self._read: set[int] = set()  # hashes of the test documents so far
        self._last = ("", False)  # the last document, and whether it overlaps
        for path in map(str, paths):
            if path.startswith(_QA):
                from runnel.lab.evaluation.qa.loading import read_qa_sets

                for data in read_qa_sets(path.removeprefix(_QA)):
                    texts = {name: document.text for name, document in data.documents.items()}
                    self.add(
                        f"{path.removeprefix(_QA)}, {data.name}",
                        ((row.question, [texts[row.document]]) for row in data.questions),
                    )
            else:
                dropped = Dropped()
                with DocumentReader() as reader:
                    self.add(path, _queries_with_documents(Path(path), reader, dropped), dropped)

    def add(
        self, name: str, examples: Iterable[tuple[str, list[str]]], dropped: Dropped | None = None
    ) -> None:
        """Exclude overlaps with another test set: its queries ("" for none), each with the
        documents that answer it.
        """
        count = guarding = 0
        for query, documents in examples:
            count += 1
            if query.strip():
                self._queries.add(_hash(query))
            for text in documents:
                # Read once: many queries have the same document. Python's own hash, of the text as
                # it is, is fast.
                if hash(text) not in self._read:
                    self._read.add(hash(text))
                    self._documents.add(_hash(text))
                    self._sentences.update(_sentences(text))
            guarding += bool(query.strip()) or any(map(_has_enough_words, documents))
        if not guarding:
            why = (
                f"it has {count:,} examples or documents, none with a query or with a text of"
                f" {_LEAST_WORDS} words"
            )
            raise InputError(
                f"{name} cannot be used to exclude examples:"
                f" {dropped if dropped and dropped.counts else why}; give the queries or documents"
                " of the test set"
            )
        inform(f"{name}: excluding overlaps with {guarding} of {count} test examples or documents")

    def contaminated(self, example: Triple | Evidence) -> bool:
        """Return whether the example overlaps with a test set, and count it if so."""
        reason = self._reason(example)
        if reason is not None:
            self.counts[reason] += 1
        return reason is not None

    def _reason(self, example: Triple | Evidence) -> str | None:
        """Return how the example overlaps with a test set, if it does."""
        if isinstance(example, Evidence):
            return SENTENCES if self._shares_sentences(example.document) else None
        if _hash(example.query) in self._queries:
            return QUERY
        overlaps = (
            _has_enough_words(text) and _hash(text) in self._documents for text in example.positives
        )
        return POSITIVE if any(overlaps) else None

    def clean(self, examples: Iterable[Example]) -> Iterator[Example]:
        return (example for example in examples if not self.contaminated(example))

    def clean_documents(self, examples: Iterable[Evidence]) -> Iterator[Evidence]:
        """Clean evidence in all processes, as finding a document's sentences takes a third of the
        time of tokenizing it.
        """
        from runnel.lab.training.processes import in_processes  # imports torch

        if not self._sentences:
            yield from examples
            return
        for chunk, reasons in in_processes(self._reasons, examples):
            self.counts.update(reason for reason in reasons if reason is not None)
            yield from (one for one, reason in zip(chunk, reasons, strict=True) if reason is None)

    def _reasons(self, examples: list[Evidence]) -> list[str | None]:
        return [self._reason(example) for example in examples]

    def __str__(self) -> str:
        parts = ((reason.partition(" "), count) for reason, count in self.counts.most_common())
        return (
            "; ".join(f"{counted(count, noun)} {where}" for (noun, _, where), count in parts)
            or "no overlap with test sets"
        )

    def _shares_sentences(self, document: str) -> bool:
        if not self._sentences:
            return False
        # Examples of one document follow each other, so the last result is kept.
        if document != self._last[0]:
            sentences = _sentences(document)
            common = sum(key in self._sentences for key in sentences)
            self._last = (document, common > _MOST_SHARE * len(sentences))
        return self._last[1]


def _sentences(text: str) -> list[int]:
    pieces = [text[start:end] for start, end in split_sentences(text).tolist()]
    return [_hash(piece) for piece in pieces if _has_enough_words(piece)]


def _has_enough_words(text: str) -> bool:
    """Return whether a sentence or positive counts: it has `_LEAST_WORDS`."""
    return len(_words(text)) + sum(map(len, UNSPACED_RUN.findall(text))) // 2 >= _LEAST_WORDS


def _hash(text: str) -> int:
    """Return a hash that is the same in all processes."""
    return int(digest(" ".join(_words(text)) or text.strip())[:16], 16)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _queries_with_documents(
    path: Path, reader: DocumentReader, dropped: Dropped
) -> Iterator[tuple[str, list[str]]]:
    """Yield the queries of a test set with the documents that answer them; "" for a document
    without a query.
    """
    if path.is_dir() and not (path / "qrels").is_dir():
        # also files that .gitignore excludes, as it often does test sets
        for file in find_files([path], Selection(ignore_files=False)):
            yield from _queries_with_documents(file, reader, dropped)
        return
    if not path.is_dir() and not _holds_rows(path):
        yield from (("", [document.text]) for document in reader.read(path))
        return
    names = set() if path.is_dir() else set(column_names(path))
    # rows of a query and a document, or without a query of a text
    if ("document" if names & _QUERIES else "text") in names:
        for where, row in read_named(path):
            text = row.get("text")
            if not row.keys() & _QUERIES and isinstance(text, str):
                yield "", [titled(row.get("title"), text)]
            else:
                query = text_of(row, "question" if "question" in row else "query", where)
                yield query, texts_of(row, "document", where)
    else:
        # without the split "train", unless it is the only one
        splits = qrels_of(path) if path.is_dir() else [path]
        for split in [file for file in splits if not file.name.startswith("train")] or splits:
            yield from (
                (triple.query, list(triple.positives))
                for triple in read_triples(split, dropped=dropped)
            )


def _holds_rows(path: Path) -> bool:
    head = read_head(path, HEAD_BYTES)
    kind = recognize(head, str(path))
    line = head.lstrip(b"\xef\xbb\xbf \t\r\n").partition(b"\n")[0]
    return kind in ROWS or (kind == "txt" and (line.startswith(b"{") or b"\t" in line))
