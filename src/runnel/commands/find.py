"""`runnel find`: the sentences of files that answer a query."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import chain, groupby, pairwise, tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from runnel.commands.display import (
    Meter,
    describe,
    end_of_text_below,
    note_compiling,
    one_line,
    print_json,
    printable,
    say,
    stdout_console,
)
from runnel.commands.options import DTYPES, Dtype, Json, Model, Query
from runnel.errors import InputError, MissingDependency, ReadError
from runnel.records import Sentence, group_repeats, normalize
from runnel.text.documents.document import DocumentText
from runnel.text.documents.reader import DocumentReader
from runnel.text.documents.rows import NO_ROWS

if TYPE_CHECKING:
    from rich.console import Console

    from runnel.commands.remembered import DocumentCache, Kept
    from runnel.models.sentence_retriever import Scored, SentenceRetriever
    from runnel.models.sentence_vectors import SentenceVectors
    from runnel.text.sentences import Unit

_INDENT = " " * 4
_PLURALS: dict[Unit, str] = {"sentence": "sentences", "clauses": "clauses", "paragraph": "paragraphs"}
_ALSO = 3  # the most other places of a sentence to list
_OPEN, _CLOSE = "\ue000", "\ue001"  # private characters that mark the sentence while its context is laid out


@dataclass(frozen=True)
class Place:
    """The place of a sentence. `line` (of the canonical text) and `page` count from 1; `id` is a row's."""

    file: str
    id: str | None
    line: int
    page: int | None
    headings: tuple[str, ...]
    start: int
    end: int
    kind: str = field(default="txt", repr=False)

    def __str__(self) -> str:
        """Return the place as a user finds it in the file: a line number, if it is text."""
        if self.id is not None:
            return f"{self.file}, row {self.id}"
        if self.page is not None:
            return f"{self.file}, page {self.page:,}"
        return f"{self.file}:{self.line}" if self.kind in ("txt", "md") else self.file

    def as_json(self) -> dict[str, object]:
        """Return all fields but the file's kind, which is known from the file."""
        return {key: value for key, value in asdict(self).items() if key != "kind"}


@dataclass(frozen=True)
class Found:
    """A sentence in its context with all its places, in reading order; `place` is that of the best score."""

    sentence: Sentence
    before: str
    after: str
    place: Place
    places: tuple[Place, ...]

    @property
    def also(self) -> tuple[Place, ...]:
        """Return all places but the best."""
        return tuple(place for place in self.places if place is not self.place)

    def merge(self, later: Found) -> Found:
        """Merge the same sentence of a later document: the better one is shown."""
        best = later if later.sentence.score > self.sentence.score else self
        return replace(best, places=self.places + later.places)


@dataclass(frozen=True)
class Item:
    """A document to search. `kept`: its place in the cache, if any; `vectors`: of its sentences, if remembered."""

    file: str
    document: DocumentText
    kept: Kept | None = None
    vectors: SentenceVectors | None = None


@dataclass
class Searched:
    """The results of one call: documents read, sentences found, and files that could not be read."""

    found: list[Found] = field(default_factory=list)  # best first
    unit: Unit = "sentence"  # of `found` and of the counts in `files`
    files: list[dict[str, object]] = field(default_factory=list)
    skipped: list[dict[str, object]] = field(default_factory=list)

    def count(self, file: str, document: DocumentText, sentences: int) -> None:
        """Count a document that was read. The rows of a file are counted together."""
        if document.id is None or not self.files or self.files[-1]["file"] != file:
            facts = {"kind": document.kind, "pages": document.pages, "encoding": document.encoding, "warnings": document.warnings}
            self.files.append({"file": file, **facts, "characters": 0, "sentences": 0})
        for key, more in (("characters", len(document.text)), ("sentences", sentences)):
            self.files[-1][key] = int(str(self.files[-1][key])) + more


def find(
    query: Query,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="txt, md, html, pdf, docx, epub; a row each of jsonl, csv, tsv; - is standard input.",
            show_default=False,
        ),
    ],
    model: Model = "pocket",
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Sentences to show, over all files together.")] = 5,
    dtype: Dtype = "auto",
    context: Annotated[int, typer.Option("--context", "-c", min=0, help="Sentences to show before and after each one.")] = 1,
    unit: Annotated[
        Literal["sentence", "clauses", "paragraph"] | None,
        typer.Option(help="What is scored and shown (default: what the model was trained on).", show_default=False),
    ] = None,
    encoding: Annotated[str | None, typer.Option(help="Text encoding (default: detect, and warn when guessing).")] = None,
    remember: Annotated[
        bool, typer.Option("--remember", help="Store the encoded files: later questions do not read them again.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Show the sentences of FILEs that answer QUERY, with their places. Each file is read in one pass, however long."""
    if not query.strip():
        raise InputError("the query is empty; give the question or the words to look for")

    @cache
    def load() -> SentenceRetriever:
        note_compiling()
        from runnel.models.sentence_retriever import SentenceRetriever

        return SentenceRetriever.load(model, dtype=DTYPES[dtype])

    searched, kept = Searched(), open_cache(load, model, (encoding, unit), keep=remember)
    with DocumentReader(encoding=encoding) as reader:
        items = _items(files, reader, kept, searched)
        first = next(items, None)
        if first is not None:
            if remember and not load().remembers:
                raise InputError(f"{model} reads the query before the document, so nothing can be remembered; omit --remember")
            searched.unit = unit or load().model.unit
            search(load(), query, chain([first], items), searched, kept, top_k=top_k, context=context)
    if as_json:
        sentences = [_as_json(found) for found in searched.found]
        print_json({"query": query, "model": model, "sentences": sentences, "files": searched.files, "skipped": searched.skipped})
    else:
        show(stdout_console(), searched)
    return 1 if searched.skipped else 0


def open_cache(
    load: Callable[[], SentenceRetriever], model: str, reading: Sequence[str | None], *, keep: bool
) -> DocumentCache | None:
    """Return the cache of documents; None without `keep` if nothing has ever been stored.

    Raises:
        InputError: `keep` is set, and no cache folder exists.
    """
    folder = cache_folder()
    if folder is None and keep:
        raise InputError("there is no home folder to remember documents in; set RUNNEL_CACHE to a folder")
    if folder is None or not (keep or (folder / "find").is_dir()):
        return None
    from runnel.commands.remembered import DocumentCache

    return DocumentCache(folder / "find", load, model, reading, keep=keep)


def cache_folder() -> Path | None:
    """Return the user's cache folder: $RUNNEL_CACHE, or the platform's default; None without a home folder."""
    if chosen := os.environ.get("RUNNEL_CACHE"):
        return Path(chosen).absolute()
    common = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(common):
        return Path(common) / "runnel"
    try:
        return Path.home() / ".cache" / "runnel"
    except RuntimeError:  # a user without a home
        return None


def search(
    retriever: SentenceRetriever,
    query: str,
    items: Iterable[Item],
    into: Searched,
    kept: DocumentCache | None,
    *,
    top_k: int,
    context: int,
) -> None:
    """Read documents, in units of `into.unit`, and keep the `top_k` best of all, each with `context` sentences around it.

    Sentences that differ only in whitespace count once. All their places in a file are kept if the sentence is among the best of
    that file, or of the files before it.
    """
    items, unread = tee(items)
    with Meter("reading") as meter:
        if retriever.remembers:
            scan = retriever.scan(query, _vectors(retriever, unread, into.unit, kept, meter))
        else:
            scan = retriever.scan(query, (item.document.text for item in unread), unit=into.unit, progress=meter)
        for item, scored in zip(items, scan, strict=True):
            file, document = item.file, item.document
            into.count(file, document, len(scored))
            best = {normalize(f.sentence.text): f for f in into.found}
            for found in _best(file, document, scored, top_k, context, best):
                key = normalize(found.sentence.text)
                best[key] = best[key].merge(found) if key in best else found
            into.found = sorted(best.values(), key=lambda f: -f.sentence.score)[:top_k]  # stable: ties in file order


def _vectors(
    retriever: SentenceRetriever, items: Iterable[Item], unit: Unit, kept: DocumentCache | None, meter: Meter
) -> Iterator[SentenceVectors]:
    """Yield the sentence vectors of each document, remembered or read; store them if requested."""
    for remembered, some in groupby(items, key=lambda item: item.vectors is not None):
        if remembered:
            yield from (item.vectors for item in some if item.vectors is not None)
            continue
        unread, again = tee(some)
        texts = (item.document.text for item in unread)
        for item, vectors in zip(again, retriever.remember(texts, unit=unit, progress=meter), strict=True):
            if kept is not None and item.kept is not None:
                kept.put(item.kept, item.document, vectors)
            yield vectors


def _best(file: str, document: DocumentText, scored: Scored, top_k: int, context: int, kept: Collection[str]) -> list[Found]:
    """Find the `top_k` best sentences of a document, and the `kept` ones wherever they rank."""
    text, spans = document.text, scored.spans
    groups = group_repeats(scored.ranked(), top_k, kept)
    starts = [s.start + len(s.text) - len(s.text.lstrip()) for group in groups for s in group]
    lines = dict(zip(starts, _line_numbers(text, starts), strict=True))

    def kind_at(offset: int) -> str | None:
        block = document.block_at(offset)
        return block.kind if block else None

    def place(sentence: Sentence) -> Place:
        start = sentence.start + len(sentence.text) - len(sentence.text.lstrip())
        block = document.block_at(start)
        page, headings = (block.page, block.headings) if block else (None, ())
        return Place(file, document.id, lines[start], page, headings, sentence.start, sentence.end, document.kind)

    results = []
    for group in groups:
        best = group[0]
        places = {s.index: place(s) for s in sorted(group, key=lambda s: s.index)}
        context_end = int(spans[min(len(spans) - 1, best.index + context), 1])
        results.append(
            Found(
                best,
                before=text[spans[max(0, best.index - context), 0] : best.start],
                after=text[best.end : max(context_end, end_of_text_below(text, best.start, best.end, kind_at))],
                place=places[best.index],
                places=tuple(places.values()),
            )
        )
    return results


def _as_json(found: Found) -> dict[str, object]:
    also = [place.as_json() for place in found.also]
    return found.place.as_json() | asdict(found.sentence) | {"before": found.before, "after": found.after, "also": also}


def _items(files: Sequence[str], reader: DocumentReader, kept: DocumentCache | None, searched: Searched) -> Iterator[Item]:
    """Yield nonempty documents that are remembered or can be read; report others, and all warnings, on stderr."""
    for name in files:
        shown = "(standard input)" if name == "-" else name
        document = None
        place = None if kept is None else kept.place(name)
        found = None if kept is None or place is None else kept.get(place)
        try:
            for document in reader.read(name) if found is None else [found[0]]:
                for warning in document.warnings:
                    say(f"note: {shown}: {warning}")
                if document.text.strip():
                    yield Item(shown, document, place, None if found is None else found[1])
                elif document.id is None:
                    say(f"note: {shown} is empty")
                    searched.count(shown, document, 0)
            if document is None:
                say(f"note: {shown}: {NO_ROWS}")
        except (ReadError, MissingDependency) as error:
            say(f"error: {describe(error)}")
            searched.skipped.append({"file": shown, "reason": describe(error)})


def show(console: Console, searched: Searched) -> None:
    """Print each sentence in its context, below its place and score."""
    from rich.text import Text

    for rank, item in enumerate(searched.found, start=1):
        head = Text(f"{rank:>2}. ")
        head.append(one_line(str(item.place)), style="bold cyan")
        head.append(f"  characters {item.sentence.start}-{item.sentence.end}  score {item.sentence.score:.2f}", style="dim")
        before, marked, after = _in_context(item)
        body = Text(before, style="dim")
        body.append(marked if console.is_terminal else f"»{marked}«", style="bold yellow not dim")
        body.append(after)
        console.print(head, soft_wrap=True)
        if item.place.headings:
            console.print(Text(_INDENT + one_line(" › ".join(item.place.headings)), style="dim italic"), soft_wrap=True)
        for line in body.wrap(console, console.width - len(_INDENT)):
            line.rstrip()
            console.print(Text(_INDENT) + line)
        if item.also:
            console.print(Text(_INDENT + one_line(_also(item)), style="dim italic"), soft_wrap=True)
        console.print()
    read = [f for f in searched.files if f["sentences"]]
    if read:
        where = str(read[0]["file"]) if len(read) == 1 else f"{len(read):,} files"
        sentences, characters = (sum(int(str(f[k])) for f in read) for k in ("sentences", "characters"))
        units = _PLURALS[searched.unit]
        console.print(
            f"{len(searched.found)} of {sentences:,} {units} ({characters:,} characters) in {one_line(where)}", style="dim"
        )


def _also(item: Found) -> str:
    """Return the other places of a sentence, the first few by name."""
    names = list(dict.fromkeys(str(p) if str(p) != p.file else f"{p.file}, characters {p.start}-{p.end}" for p in item.also))
    more = f" and {len(names) - _ALSO:,} more places" if len(names) > _ALSO else ""
    return f"also at {'; '.join(names[:_ALSO])}{more}"


def _line_numbers(text: str, offsets: Sequence[int]) -> list[int]:
    """Return the line, from 1, of each character offset; one pass over the text."""
    order = sorted(range(len(offsets)), key=offsets.__getitem__)
    lines, line = [0] * len(offsets), 1
    for before, now in pairwise([-1, *order]):
        line += text.count("\n", 0 if before < 0 else offsets[before], offsets[now])
        lines[now] = line
    return lines


def _in_context(item: Found) -> tuple[str, str, str]:
    """Return the text before, in and after the sentence with line breaks undone except at blank lines.

    `printable` comes first: it replaces private characters, which mark the sentence afterwards.
    """
    sentence = item.sentence.text
    core = sentence.strip()
    lead, tail = sentence.partition(core)[::2]
    whole = printable(item.before + lead) + _OPEN + printable(core) + _CLOSE + printable(tail + item.after)
    flowed = "\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", whole.strip()))
    before, _, rest = flowed.partition(_OPEN)
    marked, _, after = rest.partition(_CLOSE)
    return before, marked, after
