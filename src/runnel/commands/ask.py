"""`runnel ask`: an answer by a language model from the sentences that runnel finds, with checked citations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runnel.commands.display import Meter, note_compiling, one_line, print_json, print_text, say, stream_text
from runnel.commands.inquiries import open_llm
from runnel.commands.options import Json, Llm, LlmModel, Model, Query, refuse

if TYPE_CHECKING:
    from runnel.generation.asking import CitedAnswer, Context, Excerpt
    from runnel.text.documents.reader import Skipped

_DOCUMENTS = 5  # of an index to take sentences from


def ask(
    question: Query,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Files, folders and globs, as for find; - is standard input.", show_default=False),
    ] = None,
    place: Annotated[
        str | None, typer.Option("--in", metavar="DIR", help="An index to search instead of files.", show_default=False)
    ] = None,
    llm: Llm = None,
    llm_model: LlmModel = None,
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Sentences to look for.")] = 20,
    context_tokens: Annotated[int, typer.Option(min=100, help="The most tokens for the language model to read.")] = 3000,
    answer_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of the answer.")] = 1000,
    show_context: Annotated[bool, typer.Option("--show-context", help="Also show everything that it reads.")] = False,
    model: Model = "pocket",
    as_json: Json = False,
) -> int:
    """Answer QUESTION from files or an index. A language model writes the answer; its citations are checked.

    Exit code: 0 for an answer, 1 for none, 2 for an error, even if other files have an answer.
    """
    refuse({"PATH": place is not None and paths}, "cannot be given with --in")
    if place is None and not paths:
        raise typer.BadParameter("give a PATH to read, or --in DIR")
    from runnel.generation.asking import answer, choose

    endpoint = open_llm(llm, llm_model)
    if place is None:
        excerpts, count, skipped = _from_files(question, paths or [], model, top_k)
    else:
        excerpts, count, skipped = *_from_index(question, place, top_k), []
    failed = any(one.error for one in skipped)
    if not excerpts:
        say("nothing found; the language model was not asked")
        if as_json:
            print_json({"question": question, "answer": None, "skipped": [asdict(one) for one in skipped]})
        return 2 if failed else 1
    context = choose(question, excerpts, context_tokens, count)
    if show_context and not as_json:
        _show_excerpts(context.excerpts, range(1, len(context.excerpts) + 1))
    result = answer(endpoint, context, max_tokens=answer_tokens, on_text=None if as_json else stream_text)
    if as_json:
        print_json(_as_json(endpoint.model, context, result) | {"skipped": [asdict(one) for one in skipped]})
    else:
        stream_text("\n" if result.text else "")
        if result.cited and not show_context:
            stream_text("\n")
            _show_excerpts(context.excerpts, result.cited)
    _report(context, result, answer_tokens)
    return 2 if failed else 0 if result.text else 1


def _from_files(
    question: str, paths: list[str], model: str, top_k: int
) -> tuple[list[Excerpt], Callable[[str], int], list[Skipped]]:
    """Return excerpts, best first, a function that counts tokens, and the files that could not be read."""
    note_compiling()
    from runnel.commands.loading import load
    from runnel.generation.asking import excerpts_of_findings
    from runnel.models.sentence_retriever import SentenceRetriever
    from runnel.search.finding import find, read_documents
    from runnel.text.documents.reader import DocumentReader

    skipped: list[Skipped] = []
    retriever = load(SentenceRetriever.load, model)
    with DocumentReader() as reader, Meter("reading") as meter:
        documents = read_documents(paths, reader, skipped, report=say)
        findings = find(retriever, question, documents, top_k=top_k, progress=meter)
    tokenizer = retriever.model.tokenizer
    return excerpts_of_findings(findings), lambda text: len(tokenizer.encode(text).ids), skipped


def _from_index(question: str, place: str, top_k: int) -> tuple[list[Excerpt], Callable[[str], int]]:
    note_compiling()
    from runnel.commands.loading import open_index
    from runnel.generation.asking import excerpts_of_hits

    index = open_index(place)
    hits = index.search(question, _DOCUMENTS, sentences=-(-top_k // _DOCUMENTS))
    tokenizer = index.embedder.model.tokenizer
    return excerpts_of_hits(hits), lambda text: len(tokenizer.encode(text).ids)


def _show_excerpts(excerpts: tuple[Excerpt, ...], numbers: Any) -> None:
    for number in numbers:
        excerpt = excerpts[number - 1]
        place = excerpt.place
        print_text(f"[{number}] {one_line(str(place))}  characters {place.start}-{place.end}")
        for line in excerpt.text.strip().splitlines():
            print_text(f"    {line}")
    stream_text("\n")


def _as_json(model: str, context: Context, result: CitedAnswer) -> dict[str, object]:
    excerpts = [one.place.as_json() | {"text": one.text, "score": one.score} for one in context.excerpts]
    facts = {"cited": result.cited, "removed_citations": result.removed, "misquoted": result.misquoted}
    counts = {name: getattr(result.reply, name) for name in ("finish", "prompt_tokens", "completion_tokens")}
    found = {"question": context.question, "answer": result.text or None, **facts, "excerpts": excerpts}
    return found | {"left_out": context.left_out, "context_tokens": context.tokens, "llm_model": model, **counts}


def _report(context: Context, result: CitedAnswer, answer_tokens: int) -> None:
    """Say on stderr what the reader of the answer must know."""
    if not result.text:
        say(f"{len(context.excerpts)} excerpts were read; they do not answer the question, says the language model")
    elif not result.cited:
        say("note: the answer cites no excerpt")
    if result.removed:
        removed = ", ".join(f"[{number}]" for number in result.removed)
        say(f"note: removed from the answer: {removed}; there are {len(context.excerpts)} excerpts")
    for quotation in result.misquoted:
        say(f'note: no excerpt says, word for word: "{quotation}"')
    if context.left_out:
        say(f"note: {context.left_out} excerpts did not fit into {context.tokens:,} tokens; raise --context-tokens to use them")
    if result.reply.finish == "length":
        say(f"note: the answer was cut at {answer_tokens:,} tokens; raise --answer-tokens")
