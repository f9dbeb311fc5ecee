"""`runnel lab synthesize`: questions about documents with their evidence, by a language model or from structure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from runnel.commands.display import Meter, note_compiling, print_json, print_text, say
from runnel.commands.options import Json, Model, TestSets, refuse_others
from runnel.errors import InputError, counted
from runnel.files import create_folder, write_json, write_jsonl
from runnel.lab.commands.inquiries import AskingOptions

if TYPE_CHECKING:
    from runnel.lab.synthesis.run import Synthesis
    from runnel.lab.synthesis.sources import Cutter, Sources
    from runnel.lab.synthesis.structure_rows import StructureRows
    from runnel.lab.training.decontaminate import Decontaminator


_QA = "qa:"  # before the place of question answering sets
_FOR_STRUCTURE = ("sources", "--to", "--limit", "--seed", "--language", "--exclude", "--json")


# Long: 27 lines are its options.
def synthesize(
    context: typer.Context,
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE", help="Files, folders, indexes, or jsonl of documents.")],
    to: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the examples and the stored replies.")],
    without_llm: Annotated[bool, typer.Option("--without-llm", help="Use the structure of documents: headings, lists.")] = False,
    strategy: Annotated[Literal["link", "pair", "chunk"], typer.Option(help="As in paper E.")] = "link",
    limit: Annotated[int | None, typer.Option(min=1, help="The most examples (default: all).")] = None,
    lengths: Annotated[str, typer.Option(help="Tokens of the documents, in equal numbers.")] = "2000,5000,10000",
    unit: Annotated[Literal["sentence", "clauses"], typer.Option(help="What is numbered and chosen as evidence.")] = "sentence",
    seed: Annotated[int, typer.Option(min=0, help="For the choice of documents and places.")] = 0,
    language: Annotated[str | None, typer.Option(metavar="CODE", help="Leave out other languages, e.g. en.")] = None,
    exclude: TestSets = None,
    asking: AskingOptions = AskingOptions(),
    reply_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of a reply.")] = 2000,
    model: Model = "pocket",
    as_json: Json = False,
) -> int:
    """Let a language model write training examples about SOURCEs: questions, answers and the sentences that answer.

    The examples are DIR/STRATEGY.jsonl, for `runnel lab train`. Replies are stored in DIR: repeat the command after an
    interruption, and nothing is paid for twice. The model -m counts tokens, and finds pairs.

    With --without-llm, headings, questions, definitions, lists and references of the documents become the questions, in
    DIR/structure.jsonl; of the options, --limit, --seed, --language, --exclude and --json apply.
    """
    if without_llm:
        refuse_others(context, "--without-llm", _FOR_STRUCTURE)
        return _from_structure(sources, to, limit, seed, language, exclude or [], as_json)
    from runnel.lab.replies import stored_replies
    from runnel.lab.synthesis.run import Settings, Synthesis
    from runnel.lab.synthesis.sources import Cutter, Sources
    from runnel.models.embedder import Embedder

    note_compiling()
    settings = Settings(strategy, unit, seed, reply_tokens, asking.threads, language)
    endpoint, guard = asking.open(), open_guard(exclude or [])
    embedder, tokens = Embedder.load(model), _numbers(lengths)
    with stored_replies(to, endpoint) as replies:
        cutter, documents = Cutter(embedder.model.tokenizer, tokens, unit, seed), Sources(sources, seed, say)
        synthesis = Synthesis(replies, settings, embedder.encode_document, guard)
        _write_examples(synthesis.rows(cutter.cuts(documents), limit), to / f"{strategy}.jsonl", limit)
        facts = _facts(synthesis, documents, cutter)
    write_json(to / f"{strategy}.json", facts)
    if as_json:
        print_json(facts)
    else:
        _show(facts, to / f"{strategy}.jsonl")
    _report(synthesis, facts, limit)
    return 0 if synthesis.stopped is None and facts["examples"] else 1


def _from_structure(
    sources: list[str], to: Path, limit: int | None, seed: int, language: str | None, exclude: list[str], as_json: bool
) -> int:
    from runnel.lab.synthesis.sources import Sources
    from runnel.lab.synthesis.structure_rows import StructureRows

    found, documents = StructureRows(open_guard(exclude), language, seed), Sources(sources, seed, say)
    path = create_folder(to) / "structure.jsonl"
    _write_examples(found.rows(documents, limit), path, limit)
    facts = structure_facts(found, documents)
    write_json(to / "structure.json", facts)
    if as_json:
        print_json(facts)
    else:
        by_strategy = ", ".join(f"{count:,} {name}" for name, count in found.kept.most_common())
        counts = f"{counted(facts['examples'], 'example')} from {counted(facts['parts'], 'part')} of documents"
        print_text(f"{path}: {counts} ({by_strategy or 'none'})")
    report_left_out(facts)
    if not facts["examples"]:
        say("note: no examples: headings, questions, definitions or lists with sentences are needed")
    return 0 if facts["examples"] else 1


def open_guard(exclude: Sequence[str]) -> Decontaminator:
    """Return the filter that --exclude describes: test sets, and question answering sets as qa:PATH."""
    from runnel.lab.evaluation.qa.loading import read_qa_sets
    from runnel.lab.training.decontaminate import Decontaminator

    guard = Decontaminator(path for path in exclude if not path.startswith(_QA))
    for path in (path.removeprefix(_QA) for path in exclude if path.startswith(_QA)):
        for data in read_qa_sets(path):
            guard.add(f"{path}, {data.name}", ((one.question, [data.documents[one.document].text]) for one in data.questions))
    return guard


def structure_facts(found: StructureRows, sources: Sources) -> dict[str, Any]:
    """Return what a run over the structure of documents has used, made and left out."""
    from dataclasses import asdict

    return {
        "seed": found.seed,
        "language": found.language,
        "documents": sources.documents,
        "repeated_documents": sources.repeated,
        "skipped": [asdict(one) for one in sources.skipped],
        "parts": found.read,
        "examples": found.kept.total(),
        "examples_by_strategy": dict(found.kept.most_common()),
        "rejected": dict(found.rejected.most_common()),
    }


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(one) for one in text.split(","))
    except ValueError as error:
        raise InputError(f"--lengths are {text!r}; expected numbers of tokens with commas, such as 2000,5000,10000") from error


def _write_examples(rows: Iterable[dict[str, Any]], path: Path, limit: int | None) -> None:
    with Meter("writing", unit="examples") as meter:
        write_jsonl(path, meter.count(rows, limit))


def _facts(synthesis: Synthesis, sources: Sources, cutter: Cutter) -> dict[str, Any]:
    from dataclasses import asdict

    from runnel.lab.replies import costs
    from runnel.lab.synthesis.prompts import VERSION

    replies = synthesis.replies
    return {
        **asdict(synthesis.settings),
        "llm_model": replies.endpoint.model,
        "documents": sources.documents,
        "repeated_documents": sources.repeated,
        "short_documents": cutter.short,
        "skipped": [asdict(one) for one in sources.skipped],
        "subsequences": synthesis.read,
        "examples": synthesis.kept.total(),
        "examples_by_length": {length: synthesis.kept[length] for length in cutter.lengths},
        "rejected": dict(synthesis.rejected.most_common()),
        "stopped": synthesis.stopped and str(synthesis.stopped),
        **costs(replies, used=VERSION),
        "per_million_examples": synthesis.cost(replies.used),
    }


def _show(facts: dict[str, Any], path: Path) -> None:
    by_length = ", ".join(f"{count:,} of {length:,} tokens" for length, count in facts["examples_by_length"].items())
    print_text(
        f"{path}: {counted(facts['examples'], 'example')} from {counted(facts['subsequences'], 'subsequence')} ({by_length})"
    )
    used = facts["used"]
    print_text(
        f"{counted(used['requests'], 'request')}, {counted(used['prompt_tokens'], 'token')} read, "
        f"{used['completion_tokens']:,} written"
    )
    if rate := facts["per_million_examples"]:
        print_text(
            f"a million such examples: {rate['input_tokens'] / 1e6:,.0f} million tokens read, "
            f"{rate['output_tokens'] / 1e6:,.0f} million written"
        )


def _report(synthesis: Synthesis, facts: dict[str, Any], limit: int | None) -> None:
    report_left_out(facts)
    if facts["short_documents"]:
        count, shortest = facts["short_documents"], min(facts["examples_by_length"])
        say(f"note: left out: {counted(count, 'document')} shorter than {shortest:,} tokens; lower --lengths to use them")
    if facts["used"]["estimated"]:
        say(f"note: the endpoint did not count the tokens of {facts['used']['estimated']:,} replies; they are estimated")
    if synthesis.failure is not None:
        say(f"note: the last failure of the endpoint: {synthesis.failure}")
    if synthesis.stopped is not None:
        say(f"note: stopped: {synthesis.stopped}; repeat the command to continue")
    elif limit is not None and facts["examples"] < limit:
        say(f"note: the sources are used up: {facts['examples']:,} of {limit:,} examples; add documents, or use another --seed")


def report_left_out(facts: dict[str, Any]) -> None:
    """Report on stderr what was rejected, by reason, and how many documents were repeated."""
    for reason, count in facts["rejected"].items():
        say(f"note: rejected: {count:,} {reason}")
    if facts["repeated_documents"]:
        say(f"note: left out: {counted(facts['repeated_documents'], 'document')} with the same text as another")
