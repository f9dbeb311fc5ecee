"""`runnel ask`: an answer by a language model from the sentences that runnel finds, with checked
citations.

`ask` finds sentences (`_find_in_files`, or a search of an index), gives them to the language model
as numbered excerpts (`generation/asking.py`), and prints the answer as it arrives
(`_print_answer`); `_report` notes on stderr what a reader must know of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from runnel.commands import display, parameters, search
from runnel.commands.find import (
    FileOptions,
    MinScore,
    Remember,
    check_retriever,
    expect_query_first,
    parse_min_score,
)
from runnel.errors import counted
from runnel.generation.endpoint import LOCAL, Endpoint, LanguageModelClient, LocalModel
from runnel.jobs.progress import notify_when
from runnel.records import AnsweringSentence, highest, unanswered
from runnel.search.finding import find, read_documents
from runnel.text.documents.reader import Skipped

if TYPE_CHECKING:
    from runnel.generation.asking import AnswerContext, CitedAnswer
    from runnel.models.sentence_retriever import SentenceRetriever

_DOCUMENTS = 5  # how many documents of an index sentences are taken from


@dataclass(frozen=True)
class LlmOptions:
    """Which language model is asked."""

    llm: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Endpoint, e.g. http://127.0.0.1:8080/v1; or local:MODEL.",
            envvar="OPENAI_BASE_URL",
        ),
    ] = None
    llm_model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Its model (default: the only one it lists).",
            envvar="RUNNEL_LLM_MODEL",
        ),
    ] = None

    def open(self) -> LanguageModelClient:
        """Return the endpoint at a URL, or the recurrent model that local:NAME names; raises as
        `Endpoint` and `LocalModel`.
        """
        if self.llm is not None and self.llm.startswith(LOCAL):
            return LocalModel(self.llm.removeprefix(LOCAL))
        return Endpoint(self.llm, self.llm_model)


def ask(
    question: parameters.Query,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Files, folders and globs; - is stdin."),
    ] = None,
    *,
    model: parameters.ModelOfIndex = None,
    place: search.In = None,
    no_update: parameters.NoUpdate = False,
    llm: LlmOptions = LlmOptions(),
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Sentences to look for.")] = 20,
    min_score: MinScore = None,
    context_tokens: Annotated[
        int, typer.Option(min=100, help="The most tokens for the language model to read.")
    ] = 3000,
    answer_tokens: Annotated[
        int, typer.Option(min=1, help="The most tokens of the answer.")
    ] = 1000,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Ask even if nothing found seems to answer.")
    ] = False,
    show_context: Annotated[
        bool, typer.Option("--show-context", help="Also show everything that it reads.")
    ] = False,
    files: FileOptions = FileOptions(),
    remember: Remember = None,
    as_json: parameters.Json = False,
) -> int:
    """Answer QUERY from files or an index, by a language model.

    Prints the answer, whose citations are checked, and the sentences that it cites.
    Example: runnel ask "when does the museum open" notes/ --llm http://127.0.0.1:8080/v1

    Without PATH and --in: from the project's own index, as `runnel search`. Exit code: 0 for an
    answer, 1 for none, 2 for an error, even if other files have an answer, 3 for an answer with a
    sentence that cites nothing: "(no source)" follows it.
    """
    _refuse_contradictions(question, paths, files, remember, place=place, no_update=no_update)
    lowest = None if min_score is None else parse_min_score(min_score)
    from runnel.generation.asking import answer, choose, excerpts_of_hits
    from runnel.models.sentence_retriever import SentenceRetriever

    # 1. the language model, and what finds sentences. In files it is the model that the user named;
    # in an index the index's own.
    endpoint = llm.open()
    index = None if paths else search.open_index(place, model, {}, update=not no_update)
    if index is None:
        retriever = SentenceRetriever.load(model or "pocket")
    else:
        retriever = SentenceRetriever(index.embedder.model)
    model_name = (model or "pocket") if paths else retriever.model.source
    check_retriever(retriever, model_name, remember, min_score)
    # 2. the sentences that may answer, and the probability that one does
    skipped: list[Skipped] = []
    if index is None:
        sentences, probability = _find_in_files(
            question, paths or [], files, skipped, retriever, remember=remember, top_k=top_k
        )
    else:
        # sentences of each document, rounded up
        hits = index.search(question, _DOCUMENTS, sentences=-(-top_k // _DOCUMENTS))
        sentences = excerpts_of_hits(hits)
        probability = highest(hit.answers for hit in hits)
    excerpts = [sentence for sentence in sentences if lowest is None or sentence.score >= lowest]
    failed = any(file.error for file in skipped)
    about = {"answers": probability, "skipped": [asdict(file) for file in skipped]}
    # 3. nothing to answer from
    if not excerpts or (unanswered(probability) and not anyway):
        not_asked = "the language model was not asked"
        if excerpts:
            display.say(f"{unanswered(probability)}; {not_asked} (--anyway asks it)")
        elif sentences:
            display.say(f"no sentence has a score of {min_score} or more; {not_asked}")
        else:
            display.say(f"nothing found; {not_asked}")
        if as_json:
            display.print_json({"question": question, "answer": None} | about)
        return 2 if failed else 1
    # 4. an answer from them
    encode = retriever.model.tokenizer.encode
    context = choose(question, excerpts, context_tokens, lambda text: len(encode(text).ids))
    if as_json:
        result = answer(endpoint, context, max_tokens=answer_tokens)
        display.print_json(_as_json(endpoint.model, context, result) | about)
    else:
        result = _print_answer(endpoint, context, answer_tokens, whole=show_context)
    _report(context, result, answer_tokens)
    if failed or not result.text:
        return 2 if failed else 1
    return 0 if result.cited and not result.unsourced else 3


def _refuse_contradictions(
    question: str,
    paths: list[str] | None,
    files: FileOptions,
    remember: bool | None,
    *,
    place: str | None,
    no_update: bool,
) -> None:
    of_files = parameters.given_options(files) | {
        "--remember or --no-remember": remember is not None
    }
    parameters.refuse(
        {
            "PATH cannot be given with --in": place and paths,
            "--no-update is for the project's own index": no_update and (place or paths),
            **{
                f"{option} has no effect on an index": given and not paths
                for option, given in of_files.items()
            },
        }
    )
    if paths:
        expect_query_first("ask", question, paths)


def _find_in_files(
    question: str,
    paths: list[str],
    files: FileOptions,
    skipped: list[Skipped],
    retriever: SentenceRetriever,
    *,
    remember: bool | None,
    top_k: int,
) -> tuple[list[AnsweringSentence], float | None]:
    from runnel.generation.asking import excerpts_of_findings

    # documents with the vectors of their sentences, from earlier calls
    cache = files.cache(lambda: retriever, retriever.model.source, remember)
    with files.reader() as reader, display.Meter("reading") as meter:
        documents = read_documents(
            paths,
            reader,
            skipped,
            selection=files.selection(),
            cache=cache,
            report=display.say,
            through=meter.files,
        )
        findings = find(
            retriever,
            question,
            documents,
            top_k=top_k,
            language=files.language,
            cache=cache,
            progress=meter,
        )
    return excerpts_of_findings(findings), findings.answers


def _print_answer(
    endpoint: LanguageModelClient, context: AnswerContext, max_tokens: int, *, whole: bool
) -> CitedAnswer:
    """Print an answer as it arrives, then the excerpts that it cites; or with `whole` before it all
    that the model reads.
    """
    from runnel.generation.asking import answer

    if whole:
        _show_excerpts(context.excerpts, range(1, len(context.excerpts) + 1))
    shown: list[str] = []

    def show(part: str) -> None:
        display.stream_text(part)
        shown.append(part)

    try:
        result = answer(endpoint, context, max_tokens=max_tokens, on_text=show)
    finally:  # also if it breaks off: the error has a line of its own
        display.stream_text("\n" if shown else "")
    if result.cited and not whole:
        display.stream_text("\n")
        _show_excerpts(context.excerpts, result.cited)
    return result


def _show_excerpts(excerpts: tuple[AnsweringSentence, ...], numbers: Iterable[int]) -> None:
    for number in numbers:
        excerpt = excerpts[number - 1]
        display.print_text(
            f"[{number}] {display.one_line(str(excerpt))}  characters {excerpt.start}-{excerpt.end}"
        )
        for line in excerpt.text.strip().splitlines():
            display.print_text(f"    {line}")
    display.stream_text("\n")


def _as_json(model: str, context: AnswerContext, result: CitedAnswer) -> dict[str, object]:
    return {
        "question": context.question,
        "answer": result.text or None,
        "cited": result.cited,
        "removed_citations": result.removed,
        "unsourced": result.unsourced,
        "misquoted": result.misquoted,
        "excerpts": [excerpt.as_json() for excerpt in context.excerpts],
        "left_out": context.left_out,
        "context_tokens": context.tokens,
        "llm_model": model,
        **{
            name: getattr(result.reply, name)
            for name in ("finish", "prompt_tokens", "completion_tokens")
        },
    }


def _report(context: AnswerContext, result: CitedAnswer, answer_tokens: int) -> None:
    """Note on stderr what the reader of the answer must know: what is missing, cut or removed."""
    read = counted(len(context.excerpts), "excerpt")
    silent = not result.reply.text.strip()
    removed = ", ".join(f"[{number}]" for number in result.removed)
    left_out = counted(context.left_out, "excerpt")
    notify_when(
        (not result.text and silent, f"{read} read; the language model's reply is empty"),
        (not result.text and not silent, f"{read} read; the language model finds no answer there"),
        (result.text and not result.cited, "note: the answer cites no excerpt"),
        (
            result.cited and result.unsourced,
            f"note: {counted(len(result.unsourced), 'sentence')} without a source",
        ),
        (removed, f"note: removed from the answer: {removed}; it read {read}"),
        *(
            (True, f'note: no excerpt says, word for word: "{quotation}"')
            for quotation in dict.fromkeys(result.misquoted)
        ),
        (
            context.left_out,
            f"note: {left_out} did not fit into {context.tokens:,} tokens; raise --context-tokens"
            " to use more",
        ),
        (
            result.reply.finish == "length",
            f"note: the answer was cut at {answer_tokens:,} tokens; raise --answer-tokens",
        ),
    )
