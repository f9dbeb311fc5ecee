"""Write examples about documents to a folder: `synthesize` and `ask_structure` are what `runnel lab synthesize` does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runnel.commands.display import Meter, say
from runnel.errors import counted
from runnel.files import create_folder, write_json, write_jsonl
from runnel.generation.endpoint import LanguageModelClient
from runnel.lab.replies import costs, stored_replies
from runnel.lab.synthesis.prompts import VERSION
from runnel.lab.synthesis.run import Settings, Synthesis
from runnel.lab.synthesis.sources import LENGTHS, Cutter, Sources
from runnel.lab.synthesis.structure_rows import StructureRows
from runnel.lab.training.decontaminate import Decontaminator


def synthesize(
    sources: Sequence[str],
    to: Path,
    endpoint: LanguageModelClient,
    settings: Settings,
    *,
    lengths: tuple[int, ...] = LENGTHS,
    limit: int | None = None,
    exclude: Sequence[str] = (),
    model: str = "pocket",
) -> dict[str, Any]:
    """Let a language model write examples about documents to TO/STRATEGY.jsonl; return counts, also in TO/STRATEGY.json.

    Args:
        sources: files, folders, indexes, or jsonl of documents.
        to: folder of the examples and of all replies, none of which is asked for twice.
        endpoint, settings: the language model, and how it is asked.
        lengths: tokens of the documents of examples, in equal numbers.
        limit: the most examples; None: as many as there can be.
        exclude: test sets, and question answering sets as qa:PATH, whose documents are left out.
        model: counts tokens, and finds pairs.

    Raises:
        InputError: a source, a length or a test set cannot be used.
    """
    from runnel.models.embedder import Embedder

    guard, embedder = Decontaminator(exclude), Embedder.load(model)
    with stored_replies(to, endpoint) as replies:
        cutter = Cutter(embedder.model.tokenizer, lengths, settings.unit, settings.seed)
        documents = Sources(sources, settings.seed, say)
        synthesis = Synthesis(replies, settings, embedder.encode_document, guard)
        _write(synthesis.rows(cutter.cuts(documents), limit), to / f"{settings.strategy}.jsonl", limit)
        facts = {
            **asdict(settings),
            "llm_model": endpoint.model,
            **_read_of(documents),
            "short_documents": cutter.short,
            "subsequences": synthesis.read,
            "examples": synthesis.kept.total(),
            "examples_by_length": {length: synthesis.kept[length] for length in cutter.lengths},
            "rejected": dict(synthesis.rejected.most_common()),
            "stopped": synthesis.stopped and str(synthesis.stopped),
            **costs(replies, used=VERSION),
            "per_million_examples": synthesis.cost(replies.used),
        }
    write_json(to / f"{settings.strategy}.json", facts)
    _report(facts, limit, synthesis.failure)
    return facts


def ask_structure(
    sources: Sequence[str],
    to: Path,
    *,
    limit: int | None = None,
    seed: int = 0,
    language: str | None = None,
    exclude: Sequence[str] = (),
) -> dict[str, Any]:
    """Write examples from the structure of documents to TO/structure.jsonl; return counts, also in TO/structure.json."""
    found, documents = StructureRows(Decontaminator(exclude), language, seed), Sources(sources, seed, say)
    _write(found.rows(documents, limit), create_folder(to) / "structure.jsonl", limit)
    facts = structure_facts(found, documents)
    write_json(to / "structure.json", facts)
    if not facts["examples"]:
        say("note: no examples: headings, questions, definitions or lists with sentences are needed")
    return facts


def structure_facts(found: StructureRows, documents: Sources) -> dict[str, Any]:
    """Return what a run over the structure of documents has used, made and left out; the last is also reported."""
    facts = {
        "seed": found.seed,
        "language": found.language,
        **_read_of(documents),
        "parts": found.read,
        "examples": found.kept.total(),
        "examples_by_strategy": dict(found.kept.most_common()),
        "rejected": dict(found.rejected.most_common()),
    }
    for note in _left_out(facts):
        say(f"note: {note}")
    return facts


def _write(rows: Iterable[dict[str, Any]], path: Path, limit: int | None) -> None:
    with Meter("writing", unit="examples") as meter:
        write_jsonl(path, meter.count(rows, limit))


def _read_of(documents: Sources) -> dict[str, Any]:
    skipped = [asdict(one) for one in documents.skipped]
    return {"documents": documents.documents, "repeated_documents": documents.repeated, "skipped": skipped}


def _left_out(facts: dict[str, Any]) -> Iterator[str]:
    """Yield what was rejected, by reason, and how many documents were repeated."""
    for reason, count in facts["rejected"].items():
        yield f"rejected: {count:,} {reason}"
    if repeated := facts["repeated_documents"]:
        yield f"left out: {counted(repeated, 'document')} with the same text as another"


def _report(facts: dict[str, Any], limit: int | None, failure: Exception | None) -> None:
    notes = list(_left_out(facts))
    if short := facts["short_documents"]:
        shortest = min(facts["examples_by_length"])
        notes.append(f"left out: {counted(short, 'document')} shorter than {shortest:,} tokens; lower --lengths to use them")
    if estimated := facts["used"]["estimated"]:
        notes.append(f"the endpoint did not count the tokens of {estimated:,} replies; they are estimated")
    if failure is not None:
        notes.append(f"the last failure of the endpoint: {failure}")
    if facts["stopped"] is not None:
        notes.append(f"stopped: {facts['stopped']}; repeat the command to continue")
    elif limit is not None and facts["examples"] < limit:
        few = f"{facts['examples']:,} of {limit:,} examples"
        notes.append(f"the sources are used up: {few}; add documents, or use another --seed")
    for note in notes:
        say(f"note: {note}")
