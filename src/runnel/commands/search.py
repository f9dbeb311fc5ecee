"""`runnel search`: documents of an index, with the sentences that answer a query.

`search` opens the index (`open_index`, which first brings a project's own index up to date),
searches it (`Index.search`), and prints the hits in the wanted form: `_show` for a terminal,
`_lines` for programs.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runnel.commands import display, find, indexes, parameters
from runnel.errors import counted
from runnel.records import Explanation, Hit, highest, normalize, percent
from runnel.search.filters import parse_conditions
from runnel.search.timing import timed
from runnel.text.documents.ocr import Ocr

if TYPE_CHECKING:
    from rich.console import Console

    from runnel.search.index import Index

log = logging.getLogger("runnel")

In = Annotated[
    str | None,
    typer.Option(
        "--in", metavar="PLACE", help="Folder or URI of an index (default: the project's own)."
    ),
]


def search(
    query: parameters.Query,
    *,
    model: parameters.ModelOfIndex = None,
    place: In = None,
    no_update: parameters.NoUpdate = False,
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Documents to show.")] = 10,
    words_only: Annotated[
        bool, typer.Option("--words-only", help="Rank by words alone (BM25).")
    ] = False,
    meaning_only: Annotated[
        bool, typer.Option("--meaning-only", help="Rank by meaning alone (vectors).")
    ] = False,
    weight: Annotated[
        float | None,
        typer.Option(
            min=0, help="Weight of meaning, where that of words is 1 (default: by the model)."
        ),
    ] = None,
    rerank: Annotated[
        int | None,
        typer.Option(min=0, help="Documents to rerank (default: 50 if remembered, else none)."),
    ] = None,
    no_rerank: Annotated[
        bool, typer.Option("--no-rerank", help="Do not rerank; the same as --rerank 0.")
    ] = False,
    read: Annotated[
        int | None,
        typer.Option(
            min=0, help="Documents to show sentences of; default: all remembered, else 5."
        ),
    ] = None,
    sentences: Annotated[
        int, typer.Option("--sentences", "-s", min=0, help="Sentences to show of each of them.")
    ] = 3,
    conditions: Annotated[
        list[str] | None,
        typer.Option(
            "--where", metavar="CONDITION", help="Filter, e.g. year>=2020; all must hold."
        ),
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(
            metavar="CODE",
            help="Language of sentences that are not stored (default: the index's).",
        ),
    ] = None,
    ocr: parameters.OcrOption = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Show each document's rank by words, by meaning and by the reranker."
        ),
    ] = False,
    output: parameters.FormOptions = parameters.FormOptions(),
) -> int:
    """Show the documents of an index that answer QUERY, by meaning and by words.

    Prints each document with its answering sentences, best first.
    Example: runnel search "when does the museum open" --in library

    Without --in: the project's own index, made by `runnel index` in the working directory or in a
    folder above it; without one, the working directory is indexed, with a note. It is first brought
    up to date with the files. Exit code: 0 documents were
    found, 1 none, 2 an error.
    """
    parameters.refuse(
        {
            "--no-update has no effect with --in, which is never updated": no_update and place,
            "--ocr has no effect with --in, which is never updated": ocr and place,
            "--ocr has no effect with --no-update": ocr and no_update,
            "--explain has no effect on --plain and --files-with-matches": (
                explain and (output.plain or output.files)
            ),
        }
    )
    options = _ranking(words_only, meaning_only, weight, rerank, no_rerank)
    form = output.form()
    timings: dict[str, float] = {}
    index = open_index(
        place, model, timings, update=not no_update, ocr=None if ocr is None else Ocr(ocr)
    )
    hits = index.search(
        query,
        top_k,
        where=parse_conditions(conditions or [], index.store.settings.fields),
        **options,
        read=read,
        sentences=sentences,
        language=language,
        timings=timings,
    )
    if not hits and not len(index):
        display.say("note: the index has no documents; `runnel index` adds them")
    log.info(
        "%s", ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in timings.items())
    )
    answers = highest(hit.answers for hit in hits)
    if form != "json":
        display.note_unanswered(answers)
    if form == "layout" or (form == "plain" and explain):
        _show(display.stdout_console(), hits, explain=explain)
    else:
        display.print_results(
            form,
            lambda: {
                "query": query,
                "index": index.store.uri,
                "answers": answers,
                "documents": [hit.as_json() for hit in hits],
                "seconds": timings,
            },
            hits,
            (
                name
                for hit in hits
                for name in (_file(hit), *(_shown(place.file) for place in hit.also))
            ),
            (line for hit in hits for line in _lines(hit)),
        )
    return 0 if hits else 1


def _ranking(
    words_only: bool, meaning_only: bool, weight: float | None, rerank: int | None, no_rerank: bool
) -> dict[str, Any]:
    """Return the options of `Index.search` for the ranking. `dense_weight` is the weight of meaning
    (vectors) against 1 for words: infinity is meaning alone. By words alone or meaning alone, the
    documents are reranked only if --rerank says so.
    """
    alone = words_only or meaning_only
    parameters.refuse(
        {
            "--rerank cannot be given with --no-rerank": no_rerank and rerank,
            "--meaning-only cannot be given with --words-only": words_only and meaning_only,
            "--weight has no effect on one list alone": alone and weight is not None,
        }
    )
    if alone:
        return {"dense_weight": 0 if words_only else math.inf, "rerank": rerank or 0}
    return {"dense_weight": weight, "rerank": 0 if no_rerank else rerank}


def open_index(
    place: str | None,
    model: str | None,
    timings: dict[str, float],
    *,
    update: bool,
    ocr: Ocr | None = None,
) -> "Index":
    """Open the index at a place; without one, the project's own, which is made if there is none,
    brought up to date.
    """
    from runnel.search.index import Index

    project = None
    if place is None:
        project = indexes.expect_or_make_project() if update else indexes.expect_project()
    opens = Index.open if project is None else Index.open_or_create
    with timed(timings, "open"):
        index = opens(str(place if project is None else project.place), model)
    if project is not None and update:
        with timed(timings, "update"):
            indexes.refresh_project(project, index, ocr)
    return index


def _file(hit: Hit) -> str:
    """Return the file of a document, relative to the working directory if it is in it; the id of
    one without a file.
    """
    return _shown(hit.source) if hit.source else hit.id


def _shown(name: str) -> str:
    path = Path(name)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else name


def _lines(hit: Hit) -> list[str]:
    """Return a line for each sentence: FILE:PLACE:TEXT; of a document without sentences its title,
    or its first line.
    """
    if hit.sentences or hit.place is None:
        lines = [f"{_file(hit)}:{sentence.where}:{sentence.words}" for sentence in hit.sentences]
        if hit.also:
            lines[-1] += f"  (and {counted(len(hit.also), 'more place')})"
        return lines
    title = hit.title or hit.place.text.lstrip().partition("\n")[0]
    return [f"{_file(hit)}:{hit.place.where}:{title}"]


def _show(console: "Console", hits: Sequence[Hit], *, explain: bool) -> None:
    from rich.padding import Padding
    from rich.style import Style
    from rich.text import Text

    if not hits:
        console.print("nothing found", style="dim")
    for hit in hits:
        start = hit.sentences[0] if hit.sentences else hit.place
        head = Text(f"{hit.rank:>2}. ")
        # the id begins with the file
        name = hit.id.replace(hit.source, _file(hit), 1) if hit.source else hit.id
        link = None if start is None else find.place_link(hit.source, start)
        head.append(
            display.one_line(hit.title or name), style=Style.parse("bold cyan") + Style(link=link)
        )
        console.print(head, soft_wrap=True)
        if hit.title:
            console.print(Text("    " + display.one_line(name), style="dim"), soft_wrap=True)
        if explain and hit.explanation is not None:
            console.print(
                Text("    " + _explained(hit.score, hit.explanation), style="dim"), soft_wrap=True
            )
        for sentence in hit.sentences:
            place = f"line {sentence.where}" if sentence.where.isdecimal() else sentence.where
            chance = "" if sentence.answers is None else percent(sentence.answers)
            # a place in characters names the headings itself
            headings = "" if place.startswith("characters") else " › ".join(sentence.headings)
            shown = display.one_line(", ".join(filter(None, (chance, place, headings))))
            body = Text(sentence.words)
            body.append(
                f"  ({shown})",
                style=Style.parse("dim italic") + Style(link=find.place_link(hit.source, sentence)),
            )
            console.print(Padding(body, (0, 0, 0, 4)))
            if sentence.after:
                console.print(Padding(Text(normalize(sentence.after), style="dim"), (0, 0, 0, 6)))
        if hit.also:
            places = [replace(place, file=_shown(place.file)) for place in hit.also]
            line = display.one_line(find.other_places(places))
            console.print(Text("    " + line, style="dim italic"), soft_wrap=True)
        console.print()


def _explained(score: float, why: Explanation) -> str:
    """Return a document's score, its ranks and what they add: "score 0.0323: words 1 (+0.0164),
    meaning 3 (+0.0159), ...".
    """
    ranks = [
        f"{name} {'not found' if part.rank is None else f'{part.rank} (+{part.score:.4f})'}"
        for name, part in (("words", why.words), ("meaning", why.meaning))
    ]
    if why.relevance is not None:
        ranks.append(
            f"reranked {why.reranked.rank} (+{why.reranked.score:.4f}), relevance"
            f" {why.relevance:.2f}"
        )
    return f"score {score:.4f}: {', '.join(ranks)}"
