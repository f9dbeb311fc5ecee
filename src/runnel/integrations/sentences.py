"""The sentences of several texts that answer a query, as the compressors and postprocessors of other libraries return them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from runnel.models.sentence_retriever import SentenceRetriever
from runnel.records import Sentence, expect_count, group_repeats, normalize, trim


def best_sentences(
    retriever: SentenceRetriever, query: str, texts: Iterable[str], top_k: int, min_score: float | None = None
) -> list[tuple[int, Sentence]]:
    """Return the best sentences of all texts together, each with the position of its text, best first, ties in reading order.

    Sentences that differ only in whitespace are returned once, at their best place. Unlike the sentences of `retrieve`, these
    have no whitespace at their ends: `texts[position][sentence.start : sentence.end] == sentence.text`. Texts without a visible
    character have no sentences.

    Args:
        min_score: omit sentences with lower scores (default: none).

    Raises:
        InputError: the query is empty, a text is not a string, or `top_k` is not a whole number of at least 1.
    """
    expect_count(top_k, "top_k")
    best: dict[str, tuple[int, Sentence]] = {}
    for position, scored in enumerate(retriever.scan(query, texts)):
        for sentence, *_ in group_repeats(scored.ranked(), top_k):
            key = normalize(sentence.text)
            if key and (key not in best or sentence.score > best[key][1].score):
                best[key] = position, sentence
    ranked = sorted(best.values(), key=lambda one: (-one[1].score, one[0], one[1].start))[:top_k]
    return [(position, trimmed(sentence)) for position, sentence in ranked if min_score is None or sentence.score >= min_score]


def trimmed(sentence: Sentence) -> Sentence:
    """Return a sentence without whitespace at its ends."""
    first, last = trim(sentence.text, 0, len(sentence.text))
    return replace(sentence, text=sentence.text[first:last], start=sentence.start + first, end=sentence.start + last)
