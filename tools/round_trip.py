"""Keep the questions of `runnel lab synthesize` that survive a round trip.

    python -m tools.round_trip examples/chunk.jsonl texts/ --to kept.jsonl --gguf MODEL.gguf

A question survives if `pocket` finds its evidence again among the 100 best sentences of the whole
source, and if a language model finds the question likelier after its evidence than after pocket's
best other sentence. `texts/` are the sources of the examples. Rows that survive are evidence
(docs/data.md) about whole sources, with what was measured; the others stay in `kept.jsonl.sqlite`,
so a command that was interrupted resumes. Needs the package gguf.
"""

from __future__ import annotations

import argparse
import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runnel import SentenceRetriever
from runnel.files import write_jsonl
from runnel.journal import Journal, Row
from runnel.lab.synthesis.sources import Sources
from runnel.models.pocket.sentence_vectors import SentenceVectors

BEST = 100  # sentences of a source among which pocket must find the evidence
_PROMPT = "Passage: {passage}\n\nWrite a question that a reader would ask and this passage answers."
_MOST = 600  # characters of a passage that the language model reads
Likelihood = Callable[[str, str], float]  # of a question after a passage


@dataclass(frozen=True)
class Trip:
    """What a round trip says of a question. Likelihoods are mean log probabilities of its tokens,
    in nats.
    """

    place: int | None  # of the evidence among pocket's best, from 1; None: not among them
    source: float = 0.0  # the likelihood after the evidence ...
    other: float = 0.0  # ... and after pocket's best other sentence

    @property
    def survives(self) -> bool:
        return self.place is not None and self.source > self.other


def main() -> None:
    """Filter the rows of a file, and print what came of them by kind of source."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("examples", type=Path, help="rows of runnel lab synthesize")
    parser.add_argument("sources", nargs="+", help="files or folders that it read")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--gguf", type=Path, required=True, help="the language model's file")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.examples.read_text("utf-8").split("\n") if line]
    texts = {source.name: source.text for source in Sources(options.sources, 0)}
    if missing := {row["source"] for row in rows} - texts.keys():
        raise SystemExit(
            f"not among the sources, or copies of others: {', '.join(sorted(missing))}"
        )
    retriever = SentenceRetriever.load("pocket")
    with Journal(options.to, {}) as journal:
        trips = list(make_trips(rows, texts, retriever, likelihood(options.gguf), journal))
    kept = [
        whole_source(row, texts[row["source"]]) | {"round_trip": asdict(trip)}
        for row, trip in zip(rows, trips, strict=True)
        if trip.survives
    ]
    write_jsonl(options.to, kept)
    print_counts(rows, trips)
    print(f"{options.to}: {len(kept):,} of {len(rows):,} questions")


def make_trips(
    rows: list[dict[str, Any]],
    texts: dict[str, str],
    retriever: SentenceRetriever,
    likelihood: Likelihood,
    journal: Journal,
) -> Iterator[Trip]:
    """Yield the trip of each row, in order; trips in the journal are not made again."""
    read: tuple[str, SentenceVectors] | None = None
    for row in rows:
        if (stored := journal.get(row["id"])) is None:
            name = row["source"]
            if read is None or read[0] != name:
                read = name, next(retriever.remember([texts[name]]))
            evidence = whole_source(row, texts[name])["evidence"]
            trip = make_trip(row["question"], read[1], evidence, retriever, likelihood)
            journal.add(Row(row["id"], asdict(trip)))
        else:
            trip = Trip(**stored)
        yield trip


def make_trip(
    question: str,
    document: SentenceVectors,
    evidence: list[list[int]],
    retriever: SentenceRetriever,
    likelihood: Likelihood,
) -> Trip:
    """Ask pocket for the best sentences, and the language model about the evidence and the best
    other one. Where pocket does not find the evidence, the language model is not asked.
    """
    best = retriever.retrieve(question, document, BEST)
    found = [any(a < s.end and s.start < b for a, b in evidence) for s in best]
    if True not in found or False not in found:
        return Trip(None)
    text = document.text
    other = best[found.index(False)]
    return Trip(
        found.index(True) + 1,
        likelihood(question, " ".join(text[start:end] for start, end in evidence)),
        likelihood(question, text[other.start : other.end]),
    )


def whole_source(row: dict[str, Any], text: str) -> dict[str, Any]:
    """Return a row about its whole source, not the part that was shown to the language model.

    The part may have lost whitespace ("clauses"), so characters are counted without it.
    """
    visible = [place for place, character in enumerate(text) if not character.isspace()]
    first = bisect_left(visible, row["source_start"])
    document = row["document"]

    def moved(place: int) -> int:
        return visible[first + len("".join(document[:place].split()))]

    spans = [[moved(start), moved(end - 1) + 1] for start, end in row["evidence"]]
    for (start, end), (before, after) in zip(spans, row["evidence"], strict=True):
        if text[start:end].split() and "".join(text[start:end].split()) != "".join(
            document[before:after].split()
        ):
            raise ValueError(f"{row['source']} is not the text that the example {row['id']} is of")
    return {
        "id": row["id"],
        "question": row["question"],
        "document": text,
        "evidence": spans,
        "answer": row["answer"],
        "source": row["source"],
    }


def likelihood(gguf: Path) -> Likelihood:
    """Load a language model that tells how likely a question is after a passage, in fp32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = gguf.parent
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=gguf.name, dtype=torch.float32
    ).eval()

    def measure(question: str, passage: str) -> float:
        asked = [
            {"role": "system", "content": "You write questions."},
            {"role": "user", "content": _PROMPT.format(passage=passage[:_MOST])},
        ]
        prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        read = tokenizer(prompt, add_special_tokens=False).input_ids
        written = tokenizer(question, add_special_tokens=False).input_ids
        with torch.no_grad():
            ids = torch.tensor([read + written])
            logits = model(input_ids=ids, logits_to_keep=len(written) + 1).logits[0, :-1]
        steps = logits.log_softmax(-1)[range(len(written)), written]
        return float(steps.mean())

    return measure


def print_counts(rows: list[dict[str, Any]], trips: list[Trip]) -> None:
    """Print how many questions of each kind of source are found, found first, and survive; the kind
    is the name of the file before the first hyphen.
    """
    counts: dict[str, Counter[str]] = {}
    for row, trip in zip(rows, trips, strict=True):
        for kind in (Path(row["source"]).name.partition("-")[0], "all"):
            counts.setdefault(kind, Counter()).update(
                {
                    "questions": 1,
                    "found": trip.place is not None,
                    "first": trip.place == 1,
                    "survive": trip.survives,
                }
            )
    for kind, count in sorted(counts.items()):
        print(f"{kind:20}", *(f"{name} {count[name]:5}" for name in count))


if __name__ == "__main__":
    main()
