"""Documents to write examples about, their subsequences, and the texts that are left out.

    Sources     files, folders and indexes -> `Source`, a document each
    Cutter      a `Source` -> `Subsequence`s, the documents of examples
    refusal     why no example is written about a subsequence

Paper E (docs/papers.md) made its training data like this. Its models, whose unit is "clauses", read
a text without some of its whitespace (`text/joined.py`). So there are two texts of a document, and
positions are characters of one of them:

    source   `Source.text`, as it was stored
    read     the text as models with the unit read it; `kept` has, for each of its characters, the
             position in the source. Both are the same for all other units, and `kept` is None.

S  units of a subsequence
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from runnel.checks import expect_choice, expect_count
from runnel.errors import InputError, needing
from runnel.files import digest
from runnel.jobs.progress import notify
from runnel.lab.training.data import Evidence
from runnel.lab.training.decontaminate import Decontaminator
from runnel.records import Places, trim
from runnel.search.finding import read_documents
from runnel.search.stores import Store, open_store
from runnel.text.documents.document import HEAD_BYTES, recognize
from runnel.text.documents.reader import DocumentReader, Skipped
from runnel.text.folders import find_files, is_index
from runnel.text.joined import as_read
from runnel.text.lines import read_head, read_json, text_of
from runnel.text.sentences import SentenceTokens, Unit, read_sentences
from runnel.text.tokenizer import Tokenizer

LENGTHS = (2000, 5000, 10000)
# The least probability of the language, as in the code of paper E, which has langdetect instead of
# py3langid.
LEAST_PROBABILITY = 0.8


@dataclass(frozen=True)
class Source:
    """A document and where it is from: a file, or a row of one."""

    name: str
    text: str
    # its blocks, such as paragraphs, items of lists and code; a row of evidence has none
    places: Places = field(default_factory=Places)


@dataclass(frozen=True, eq=False)
class Subsequence:
    """Neighboring units of a document, from its first to its last visible character: the document
    of an example.
    """

    source: str  # where its document is from: `Source.name`
    start: int  # where it begins in `Source.text`
    text: str  # as models with the unit read it
    # (S, 2) int64, start and end of each unit in `text`, without whitespace at their ends
    spans: np.ndarray
    tokens: int  # at most `length`, unless a single unit is longer
    length: int  # the requested length that was drawn

    def unit(self, number: int) -> str:
        return self.text[slice(*self.spans[number].tolist())]

    def span(self, units: range) -> tuple[int, int]:
        """Return the characters from the first to the last of some neighboring units."""
        return int(self.spans[units[0], 0]), int(self.spans[units[-1], 1])


@dataclass
class Sources:
    """The documents of files, folders and indexes, in an order that depends on the seed. Iterate
    over it once.

    `paths` are files and folders of all kinds that runnel reads, jsonl rows with a "document"
    (evidence) or a "text", and places of indexes, whose documents are as they were when they were
    indexed. Raises InputError for a file that is missing, or a row that has neither a document nor
    a text, and StoreError for an index that cannot be opened.
    """

    paths: Sequence[str]
    seed: int
    documents: int = 0  # read, each text once
    repeated: int = 0  # left out, because their text had been read before
    skipped: list[Skipped] = field(default_factory=list)  # files that cannot be read

    def __iter__(self) -> Iterator[Source]:
        indexes = [path for path in self.paths if "://" in path or is_index(path)]
        seen: set[str] = set()
        with DocumentReader() as reader, ExitStack() as stack:
            stores = [stack.enter_context(closing(open_store(place))) for place in indexes]
            # files, and the documents of indexes
            origins: list[Path | tuple[Store, str]] = list(
                find_files(path for path in self.paths if path not in indexes)
            )
            origins += [
                (store, name) for store in stores for name in sorted(store.content_hashes())
            ]
            np.random.default_rng(self.seed).shuffle(origins)
            for origin in origins:
                for source in self._sources(origin, reader):
                    key = digest(source.text)
                    self.repeated += key in seen
                    if key not in seen:
                        seen.add(key)
                        self.documents += 1
                        yield source

    def _sources(
        self, origin: Path | tuple[Store, str], reader: DocumentReader
    ) -> Iterator[Source]:
        if isinstance(origin, tuple):
            store, name = origin
            row = store.documents([name])[name]
            yield Source(f"{store.uri}: {name}", row.text, Places(row.blocks))
        elif _holds_evidence(origin):
            for number, (where, values) in enumerate(read_json(origin), start=1):
                name = f"{origin}: {values.get('id', number)}"
                yield Source(name, text_of(values, "document", where))
        else:
            for read in read_documents([str(origin)], reader, self.skipped, report=notify):
                document = read.document
                name = str(origin) if document.id is None else f"{origin}: {document.id}"
                yield Source(name, document.text, document.places())


def _holds_evidence(file: Path) -> bool:
    """Return whether the first row of a jsonl file has a document; a file that cannot be read is
    reported by its reader.
    """
    try:
        if recognize(read_head(file, HEAD_BYTES), file.name) != "jsonl":
            return False
        return any("document" in row for _, row in islice(read_json(file), 1))
    except (InputError, OSError):
        return False


@dataclass
class Cutter:
    """Cuts documents into subsequences that do not overlap, of each length as many as of the others
    where documents allow it.
    """

    tokenizer: Tokenizer
    lengths: tuple[int, ...] = LENGTHS  # tokens of a subsequence
    unit: Unit = "sentence"
    seed: int = 0
    made: Counter[int] = field(default_factory=Counter)  # subsequences so far, by length
    short: int = 0  # documents shorter than every length, which are left out

    def __post_init__(self) -> None:
        expect_count(min(self.lengths, default=0), "the least length in tokens")

    def cuts(self, sources: Iterable[Source]) -> Iterator[Subsequence]:
        for source in sources:
            read, kept = as_read(source.text, self.unit)
            units = read_sentences(
                source.text, [self.tokenizer.encode(read)], unit=self.unit, kept=kept
            )
            rng = np.random.default_rng([self.seed, int(digest(source.text), 16)])
            chosen = self._choose(len(units.ids), rng)
            self.short += not chosen
            yield from self._cut(source, units, read, kept, chosen, rng)

    def _choose(self, tokens: int, rng: np.random.Generator) -> list[int]:
        """Return lengths that fill a document; the rarest so far first, in random order."""
        chosen: list[int] = []
        while fitting := [n for n in self.lengths if n <= tokens]:
            length = min(fitting, key=lambda n: (self.made[n], n))
            self.made[length] += 1
            tokens -= length
            chosen.append(length)
        rng.shuffle(chosen)
        return chosen

    def _cut(
        self,
        source: Source,
        units: SentenceTokens,
        read: str,
        kept: np.ndarray | None,
        lengths: list[int],
        rng: np.random.Generator,
    ) -> Iterator[Subsequence]:
        """Yield a subsequence of each length, one after the other, from a random unit on."""
        # `units.bounds` has the first token of each unit, `units.spans` its characters in the
        # source.
        start_token = rng.integers(0, len(units.ids) - sum(lengths) + 1)
        first = int(np.searchsorted(units.bounds, start_token, side="right")) - 1
        for length in lengths:
            # 1. The units from `first` to the one before `stop` have at most `length` tokens; a
            # longer unit is alone.
            if first == len(units.spans):  # a unit longer than its subsequence has used up the rest
                return
            stop = (
                int(np.searchsorted(units.bounds, units.bounds[first] + length, side="right")) - 1
            )
            stop = max(stop, first + 1)
            tokens = int(units.bounds[stop] - units.bounds[first])
            # 2. Their characters in the source, without whitespace at their ends; units of
            # whitespace alone have none, and are left out.
            visible = [
                span
                for unit in units.spans[first:stop].tolist()
                if (span := trim(source.text, *unit))[0] < span[1]
            ]
            spans = np.array(visible, dtype=np.int64).reshape(-1, 2)
            start = int(spans[0, 0]) if visible else 0
            # 3. In the text as read (`kept` has the position in the source of each character that
            # it keeps, so a position's index there is the position in the text), and from the first
            # of them on.
            if kept is not None:
                spans = np.searchsorted(kept, spans)
            begin = int(spans[0, 0]) if visible else 0
            end = int(spans[-1, 1]) if visible else 0
            yield Subsequence(source.name, start, read[begin:end], spans - begin, tokens, length)
            first = stop


def check_language(code: str | None) -> None:
    """Raise InputError if texts cannot be recognized as this language, and MissingDependency
    without py3langid. None stands for every language.
    """
    if code is not None:
        expect_choice(code, sorted(_identifier().labels), "the language")


def refusal(text: str, guard: Decontaminator, language: str | None) -> str | None:
    """Return the reason not to ask about a text, a part of a document, if there is one."""
    # the guard compares documents, so the query and the evidence may be empty
    if guard.contaminated(Evidence("", text, ())):
        return "subsequences that overlap with a test set"
    if language is None or dict(_identifier().rank(text)).get(language, 0.0) >= LEAST_PROBABILITY:
        return None
    return f"subsequences that are not in {language}"


@cache
def _identifier() -> Any:
    with needing("recognizing languages needs the package py3langid", "answers"):
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
