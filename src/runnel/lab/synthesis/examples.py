"""Write training examples about documents to a folder, for `runnel lab synthesize`.

    synthesize       a language model writes them: `Cutter` cuts documents into subsequences, and
                     `Synthesis` asks about each, and makes a row of what comes back
    ask_structure    without a language model: headings, lists and the like are the questions
                     (`structure.py`); with --without-llm

An example is a question, the document that it is about, and the evidence: where the document
answers it. Words of this file:

    unit         what evidence consists of: a sentence, or a group of clauses
    subsequence  neighboring units of a document, of a drawn number of tokens: the document of an
                 example
    place        neighboring units of a subsequence that the language model is shown to ask about:
                 20 sentences, or 5 groups of clauses (`strategies.PLACE_UNITS`)
    strategy     how places are chosen. "chunk": one at random. "pair": one at random, and the one
                 with the nearest vector. "link": one at random, and the furthest unit that the
                 language model finds connected with it, with its neighbors
    draft        an example that a strategy has written, before it is a row: `strategies.Draft`
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from runnel.errors import counted
from runnel.files import create_folder, digest, write_json, write_jsonl
from runnel.generation.endpoint import LanguageModelClient, Reply
from runnel.jobs.progress import notify, notify_when, open_progress
from runnel.lab.prompts import read_prompts
from runnel.lab.replies import Inquiry, costs, stored_replies
from runnel.lab.synthesis import strategies
from runnel.lab.synthesis.sources import (
    LENGTHS,
    Cutter,
    Sources,
    Subsequence,
    check_language,
    refusal,
)
from runnel.lab.synthesis.structure import StructureRows
from runnel.lab.training.decontaminate import Decontaminator
from runnel.models.embedder import Embedder
from runnel.text.sentences import Unit, tile

# Subsequences that are asked about before the examples are counted, and the limit is looked at. It
# does not depend on the number of threads, so that the result does not either.
_WAVE = 64
_NO_REPLY = "requests without a reply; repeat the command to ask again"


@dataclass(frozen=True)
class Settings:
    """How examples are written."""

    strategy: strategies.Strategy = "link"
    # or "clauses" as in the code of paper E, Full-context sentence retrieval (docs/papers.md)
    unit: Unit = "sentence"  # one of `strategies.PLACE_UNITS`
    seed: int = 0
    reply_tokens: int = 2000  # the most tokens of a reply; one that is cut there is rejected
    threads: int = 8  # requests at a time
    language: str | None = None  # a code such as "en": subsequences in other languages are left out


@dataclass
class Synthesis:
    """Examples about subsequences, and the counts of them; used once."""

    inquiry: Inquiry  # asks in several threads, and stores the replies
    settings: Settings
    encode: strategies.Encode  # texts -> vectors (n, d) of length 1; used for pairs
    guard: Decontaminator  # subsequences that overlap with its test sets are left out
    prompts: Mapping[str, str] = field(default_factory=lambda: strategies.PROMPTS)
    version: str = strategies.VERSION  # the version of the prompts
    read: int = 0  # subsequences so far
    # examples, counted by the length that was drawn for their subsequence, in tokens
    kept: Counter[int] = field(default_factory=Counter)
    # subsequences without an example, counted by reason
    rejected: Counter[str] = field(default_factory=Counter)

    def rows(
        self, subsequences: Iterator[Subsequence], limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield examples as rows of evidence (docs/data.md), in the order of their subsequences,
        until there are `limit`.

        A run that was interrupted, or stopped, yields the same rows when it is repeated.
        """
        while self.inquiry.stopped is None and (wave := self._wave(subsequences, limit)):
            for (subsequence, _), outcome in self.inquiry.run(self._outcome, wave):
                self.read += 1
                if isinstance(outcome, strategies.Draft):
                    self.kept[subsequence.length] += 1
                    yield self._row(subsequence, outcome)
                else:  # a reason, or None from the inquiry: no reply came
                    self.rejected[_NO_REPLY if outcome is None else outcome] += 1

    def _wave(
        self, subsequences: Iterator[Subsequence], limit: int | None
    ) -> list[tuple[Subsequence, str | None]]:
        """Return the next subsequences, each with the reason not to ask about it, or None. There
        are none after `limit` examples, which ends the run.
        """
        missing = _WAVE if limit is None else min(_WAVE, limit - self.kept.total())
        return [
            (subsequence, refusal(subsequence.text, self.guard, self.settings.language))
            for subsequence in islice(subsequences, missing)
        ]

    def cost(self, used: Mapping[str, int]) -> dict[str, float]:
        """Return the tokens that a million examples take at the rate of this run; empty without an
        example. `used` has the tokens of this run: "prompt_tokens" and "completion_tokens".
        """
        if not (count := self.kept.total()):
            return {}
        return {
            "input_tokens": used["prompt_tokens"] * 1e6 / count,
            "output_tokens": used["completion_tokens"] * 1e6 / count,
        }

    def _outcome(
        self, item: tuple[Subsequence, str | None], notes: list[str]
    ) -> strategies.Draft | str:
        """Return the example about a subsequence, or the reason why there is none. An item is one
        of `_wave`; `notes`, where `Inquiry.run` takes notes of replies, stays empty.
        """
        subsequence, reason = item
        if reason is not None:
            return reason
        settings = self.settings
        # the same choices for a subsequence, whichever others come before it
        rng = np.random.default_rng([settings.seed, int(digest(subsequence.text), 16)])
        size = strategies.PLACE_UNITS[settings.unit]
        try:
            if settings.strategy == "pair":
                return strategies.write_pair(subsequence, size, rng, self._ask, self.encode)
            if settings.strategy == "link":
                return strategies.write_link(subsequence, size, rng, self._ask)
            return strategies.write_chunk(subsequence, size, rng, self._ask)
        except strategies.Rejected as rejected:
            return str(rejected)

    def _ask(self, name: str, **texts: str) -> Reply:
        """Return the reply to the prompt of a name, filled with texts."""
        return self.inquiry.replies.ask(
            strategies.fill(self.prompts, name, **texts),
            max_tokens=self.settings.reply_tokens,
            version=self.version,
        )

    def _row(self, subsequence: Subsequence, draft: strategies.Draft) -> dict[str, Any]:
        """Return the row of an example: the keys of evidence (docs/data.md, "Evidence": id,
        question, document, evidence, units), and after them keys for analysis.

        Characters are [start, end) of `document`, except `source_start`, a character of the source.
        """
        strategy = self.settings.strategy
        units = {}
        # clauses are joined until they have `CLAUSE_TOKENS` (`text/sentences.py`), so another
        # tokenizer would make other units
        if self.settings.unit == "clauses":
            starts = subsequence.spans[:, 0].tolist()
            units["units"] = tile(starts, len(subsequence.text)).tolist()
        return {
            "id": f"{strategy}-{digest(subsequence.source, subsequence.text, draft.question)}",
            "question": draft.question,
            "document": subsequence.text,
            "evidence": subsequence.spans[list(draft.units)].tolist(),
            **units,
            "answer": draft.answer,
            "connection": draft.connection,  # in words, of two places; None for one
            "places": [list(subsequence.span(place)) for place in draft.places],
            "distance": draft.distance,  # units from the one to the other; None for one
            "strategy": strategy,
            "unit": self.settings.unit,
            "source": subsequence.source,
            "source_start": subsequence.start,
            "length": subsequence.length,  # tokens that were drawn for the subsequence
            "tokens": subsequence.tokens,  # tokens that it has
            "prompts": self.version,
            "llm_model": self.inquiry.replies.endpoint.model,
        }


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
    prompts: Path | None = None,
) -> dict[str, Any]:
    """Let a language model write examples about documents to TO/STRATEGY.jsonl; return counts, also
    in TO/STRATEGY.json.

    The arguments are those of `runnel lab synthesize`: `to` has all replies too, none of which is
    asked for twice; `exclude` are test sets, and question answering sets as qa:PATH, whose
    documents are left out; `model` counts tokens, and finds pairs. Raises InputError if a source, a
    length or a test set cannot be used.
    """
    check_language(settings.language)
    texts, version = strategies.PROMPTS, strategies.VERSION
    if prompts is not None:
        texts = read_prompts(prompts, "synthesis", texts, strategies.USED[settings.strategy])
        version = digest(*texts.values())
    # 1. Load what finds overlaps with test sets, and what counts tokens and encodes places.
    guard = Decontaminator(exclude)
    embedder = Embedder.load(model)
    with stored_replies(to, endpoint) as replies:
        # 2. Write examples: documents, subsequences, drafts, rows.
        cutter = Cutter(embedder.model.tokenizer, lengths, settings.unit, settings.seed)
        documents = Sources(sources, settings.seed)
        inquiry = Inquiry(replies, settings.threads)
        synthesis = Synthesis(inquiry, settings, embedder.encode_document, guard, texts, version)
        _write_rows(
            synthesis.rows(cutter.cuts(documents), limit), to / f"{settings.strategy}.jsonl", limit
        )
        # 3. Count. Only requests with these prompts: the folder may have replies to others.
        used = costs(replies, synthesis=version)["synthesis"]
        report: dict[str, Any] = {
            **asdict(settings),
            "llm_model": endpoint.model,
            **_count_documents(documents),
            "short_documents": cutter.short,
            "subsequences": synthesis.read,
            "examples": synthesis.kept.total(),
            "examples_by_length": {length: synthesis.kept[length] for length in cutter.lengths},
            "rejected": dict(synthesis.rejected.most_common()),
            "stopped": inquiry.stopped and str(inquiry.stopped),
            "used": used,
            "per_million_examples": synthesis.cost(used),
        }
    write_json(to / f"{settings.strategy}.json", report)
    _say_report(report, limit, inquiry.failure)
    return report


def ask_structure(
    sources: Sequence[str],
    to: Path,
    *,
    limit: int | None = None,
    seed: int = 0,
    language: str | None = None,
    exclude: Sequence[str] = (),
) -> dict[str, Any]:
    """Write examples from the structure of documents to TO/structure.jsonl, without a language
    model: a heading, for example, is a question that its section answers. Return counts, also in
    TO/structure.json.

    Raises InputError if a source, the language or a test set cannot be used.
    """
    check_language(language)
    structure = StructureRows(Decontaminator(exclude), language, seed)
    documents = Sources(sources, seed)
    _write_rows(structure.rows(documents, limit), create_folder(to) / "structure.jsonl", limit)
    report = structure_facts(structure, documents)
    write_json(to / "structure.json", report)
    if not report["examples"]:
        notify(
            "note: no examples: headings, questions, definitions or lists with sentences are needed"
        )
    return report


def structure_facts(structure: StructureRows, documents: Sources) -> dict[str, Any]:
    """Return what a run over the structure of documents has read ("parts" of "documents"), made
    and left out ("rejected", by reason), and tell the user what it has left out.
    """
    report = {
        "seed": structure.seed,
        "language": structure.language,
        **_count_documents(documents),
        "parts": structure.read,
        "examples": structure.kept.total(),
        "examples_by_strategy": dict(structure.kept.most_common()),
        "rejected": dict(structure.rejected.most_common()),
    }
    _say_left_out(report)
    return report


def _write_rows(rows: Iterable[dict[str, Any]], path: Path, limit: int | None) -> None:
    """Write rows while they are made, with a meter up to `limit`, which `rows` itself keeps."""
    with open_progress("writing", "examples") as meter:
        write_jsonl(path, meter.count(rows, limit))


def _count_documents(documents: Sources) -> dict[str, object]:
    return {
        "documents": documents.documents,
        "repeated_documents": documents.repeated,
        "skipped": [asdict(file) for file in documents.skipped],
    }


def _say_left_out(report: dict[str, Any]) -> None:
    repeated = report["repeated_documents"]
    notify_when(
        *((True, f"note: rejected: {n:,} {reason}") for reason, n in report["rejected"].items()),
        (
            repeated,
            f"note: left out: {counted(repeated, 'document')} with the same text as another",
        ),
    )


def _say_report(report: dict[str, Any], limit: int | None, failure: Exception | None) -> None:
    _say_left_out(report)
    short = report["short_documents"]
    shortest = min(report["examples_by_length"])
    estimated = report["used"]["estimated"]
    stopped = report["stopped"]
    wanted = report["examples"] if limit is None else limit
    notify_when(
        (
            short,
            f"note: left out: {counted(short, 'document')} shorter than {shortest:,} tokens; lower"
            " --lengths to use them",
        ),
        (
            estimated,
            f"note: the endpoint did not count the tokens of {estimated:,} replies; they are"
            " estimated",
        ),
        (failure, f"note: the last failure of the endpoint: {failure}"),
        (stopped, f"note: stopped: {stopped}; repeat the command to continue"),
        (
            not stopped and report["examples"] < wanted,
            f"note: the sources are used up: {report['examples']:,} of {wanted:,} examples; add"
            " documents, or use another --seed",
        ),
    )
