"""The looks at a document whose sentence vectors are stored.

The first look scores every sentence from stored vectors. Then a question or heading passes on what
it has to the text below it. In the second look the best sentences are read again by the judge
layers, each with what is around it, and each token of the query is compared with those of the
sentence (late interaction; Khattab and Zaharia, "ColBERT", 2020). The best of these are read once
more, in one sequence with the query, by the pair layers. Last, a document is judged as a whole:
whether it answers at all.

    T  tokens      S  sentences of a document      Q  tokens of the query
    D  width of the vectors      F  lexical features
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from runnel.backbones.encoder.config import Form
from runnel.batching import top
from runnel.models.model import Model
from runnel.models.pocket.heads import Judge, PairJudge, normalize
from runnel.models.pocket.layout import whole_tokens
from runnel.models.pocket.lexical import COLUMNS
from runnel.models.pocket.sentence_vectors import SentenceVectors
from runnel.models.scored import FirstLook, SecondLook
from runnel.request import Request
from runnel.text.kinds import ASIDE, HEADING, INTRODUCED, QUESTION

READ_AGAIN = 64  # sentences of a document that are read again, ...
READ_AGAIN_TOGETHER = 88  # ... and of all documents of a ranking
_PAIRS = 16  # of a document's, read together with the query
_PAIRS_TOGETHER = 24  # of all documents'
_ASKED = 32  # tokens of the query, from its beginning, that are read with a sentence
_PARTS = 3  # besides the sentence, each with a marker
_TITLES = 2  # above a sentence, at most
_REACH = 12  # sentences below a title that it leads to, ...
_DECAY = 0.3  # ... each a little less than the one before
# share of what a title has above the median score that passes to the text below it: of the first
# look's scores
_LEAD = 0.3
_LEAD_AGAIN = 0.6  # and of the second's
_TITLE = 1.0  # what a title loses: its answer is below it
_BEST = 3  # of the judge's scores, whose mean is a fact of the document
FACTS = 4  # of `document_facts`


class Around(NamedTuple):
    """The most tokens that are read with a sentence."""

    titles: int  # the last of the titles above it
    near: int  # on each side of it


# The judge layers read more sentences in the time of fewer with more around them; the pair layers
# need it (docs/pocket.md).
JUDGED = Around(titles=16, near=16)
PAIRED = Around(titles=24, near=32)
# weight of a judge that is not fitted: of its scores' distances from their mean, in standard
# deviations
_STEPS = 4.0
_DOCUMENT_IDF = list(COLUMNS).index("document idf")
_NEAREST = 4  # best cosines whose mean says how near a document is


def first_look(
    query: np.ndarray,
    document: SentenceVectors,
    plain: np.ndarray,
    evidence: np.ndarray,
    *,
    lead: bool,
) -> FirstLook:
    """Return the first look of a document with the head's scores (S,); `lead`: titles lead to the
    text below them.
    """
    kinds, scores = document.kinds, plain
    if lead:
        scores = plain + _LEAD * leads(plain, kinds) - _TITLE * _titles(kinds)
        scores = np.where(kinds == ASIDE, -np.inf, scores).astype(np.float32)
    return FirstLook(query, document, plain, scores, evidence)


def document_facts(plain: np.ndarray, cosines: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Return what is known of a whole document from its sentences with a token, plain and cosines
    (S,), features (S, F) -> (4,).

    They are the best score, the mean of the best cosines, the share of the query's idf in the
    document, and its length, fp64.
    """
    nearest = np.sort(cosines)[-_NEAREST:].mean()
    return np.array(
        [plain.max(), nearest, features[0, _DOCUMENT_IDF], np.log1p(len(plain)) / 8], np.float64
    )


def _titles(kinds: np.ndarray) -> np.ndarray:
    """(S,) bool: questions and headings."""
    return (kinds == QUESTION) | (kinds == HEADING)


def leads(scores: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """Return (S,) what the titles above each sentence pass to it: the best of the run of titles
    above the median, less the decay.

    Titles get nothing. A score of -inf is unknown, and passes nothing.
    """
    out = np.zeros(len(scores))
    title = _titles(kinds)
    known = scores[scores > -np.inf]
    if not title.any() or not len(known):
        return out
    at = np.arange(len(scores))
    places = np.flatnonzero(title)
    # where a run of titles begins, in `places`
    runs = np.flatnonzero(np.diff(places, prepend=-2) > 1)
    best = np.maximum.reduceat(scores[places], runs) - np.median(known)
    last = np.maximum.accumulate(np.where(title, at, -1))
    below = (last >= 0) & ~title & (at - last <= _REACH)
    run = np.searchsorted(places[runs], last[below], side="right") - 1
    out[below] = np.maximum(0, best[run] - _DECAY * (at[below] - last[below] - 1))
    return out


def lay_around(
    document: SentenceVectors,
    sentence: int,
    titles: np.ndarray,
    longest: int,
    around: Around,
    markers: tuple[int, int],
    prompt: Sequence[int] | np.ndarray = (),
) -> tuple[np.ndarray, int, int]:
    """Return what is read again, with markers and prompt: the titles above a sentence, what is
    before it, the sentence, what is after it; and the sentence's tokens [first, last) there. Of a
    sentence of more than `longest` tokens, the beginning.

    Args:
        titles: (any,) ids, of which the last are taken.
        longest: the most tokens without the markers around all and the prompt.
        around: the most tokens of what is read with the sentence.
    """
    ids = document.ids
    start, stop = document.bounds[sentence : sentence + 2].tolist()
    text = ids[start:stop][:longest]
    left = max(0, longest - len(text) - _PARTS)
    titles = titles[max(0, len(titles) - min(around.titles, left)) :]
    near = min(around.near, (left - len(titles)) // 2)
    before = ids[max(int(document.bounds[0]), start - near) : start]
    after = ids[stop : stop + near]
    row = [np.array([markers[0]]), np.asarray(prompt, np.int32)]
    first = 0
    for part in (titles, before, text, after):
        first = sum(map(len, row)) if part is text else first
        row += [part, np.array([markers[1]])] if len(part) else []
    return np.concatenate(row).astype(np.int32), first, first + len(text)


def _around(row: np.ndarray, before: int, sentence: slice, markers: tuple[int, int]) -> np.ndarray:
    """Return (T,) bool: what is read with a sentence, without markers and the first `before`
    tokens.
    """
    around = ~np.isin(row, markers)
    around[:before] = around[sentence] = False
    return around


def facts_with_judged(facts: np.ndarray, judged: np.ndarray, floor: float) -> np.ndarray:
    """Return the facts of a document after both looks, (6,): with the best of the judge's scores
    and the mean of the best.
    """
    best = np.sort(np.append(judged, floor))[-_BEST:]
    return np.append(facts, [best[-1], best.mean()])


class Judging:
    """The second look with a model's judge layers and head, and its pair layers if it has these."""

    def __init__(self, model: Model) -> None:
        head = model.head("judge")
        pair = model.head("pair") if "pair" in model.heads else None
        assert isinstance(head, Judge)
        assert isinstance(pair, PairJudge | None)
        self._model, self.head, self._pair = model, head, pair
        self._prompts = {name: model.prompt_ids(name) for name in ("query", "document")}
        self._markers = model.tokenizer.markers()

    def knows(self, query: np.ndarray) -> bool:
        """Return whether the judge can compare a query (Q,).

        A fitted judge learned from English: of another script it sees single letters, and does harm
        (docs/choose.md).
        """
        if not self.head.calibrated:
            return True
        text = self._model.tokenizer.decode(query.tolist()).replace(
            "[UNK]", "\N{GREEK SMALL LETTER ALPHA}"
        )
        letters = [character for character in text if character.isalpha()]
        return 2 * sum(map(str.isascii, letters)) >= len(letters)

    def look(self, looks: Sequence[FirstLook]) -> list[SecondLook]:
        """Return the second look at each document: the best sentences of all are read again, a
        document's `READ_AGAIN` at most.

        Of a query longer than what the encoder reads at once, the beginning is compared: the first
        look has seen all of it.
        """
        document, sentence = np.array(self._choose(looks), np.int64).reshape(-1, 2).T
        chosen = [(looks[d], s) for d, s in zip(document.tolist(), sentence.tolist(), strict=True)]
        floor = float(self.head.floor)
        together = np.zeros(len(chosen))
        apart = self._judge(chosen)
        if self._pair is not None and chosen:
            together = self._judge_pairs(self._pair, chosen, apart)
        if not self.head.calibrated:
            apart = _STEPS * (apart - apart.mean()) / (apart.std() + 1e-6) if len(apart) else apart
            floor = float(apart.min(initial=0.0))
        looked = []
        for d, look in enumerate(looks):
            own = document == d
            again = np.full(len(look.scores), -np.inf)
            again[sentence[own]] = (apart + together)[own]
            looked.append(
                self._conclude(look, again, apart[own], floor, float(together.min(initial=0.0)))
            )
        return looked

    def _choose(self, looks: Sequence[FirstLook]) -> list[tuple[int, int]]:
        """Return (document, sentence) of those to read again."""
        pairs: list[tuple[float, int, int]] = []
        for d, look in enumerate(looks):
            near = self.head.nearness(look.facts)
            best = top(look.scores, READ_AGAIN)
            pairs += [
                (-float(look.scores[s]) - near, d, int(s)) for s in best if look.scores[s] > -np.inf
            ]
        return [
            (d, s)
            for _, d, s in sorted(pairs)[: READ_AGAIN if len(looks) == 1 else READ_AGAIN_TOGETHER]
        ]

    def _judge(self, chosen: Sequence[tuple[FirstLook, int]]) -> np.ndarray:
        """Return what the judge layers say of each sentence, (n,)."""
        if not chosen:
            return np.zeros(0)
        (begin, end), before = self._markers, len(self._prompts["document"]) + 1
        rows = [self._row(*one, self._prompts["document"], JUDGED) for one in chosen]
        prompt = self._prompts["query"]
        asked_ids = chosen[0][0].query[: whole_tokens(self._model.backbone, len(prompt))]
        query = np.array([begin, *prompt, *asked_ids, end], np.int32)
        hidden = self._read([query, *(row for row, _, _ in rows)], "judge")
        own = np.zeros(len(query), np.float32)
        own[1 + len(prompt) : -1] = 1
        weights = self.head.weigh(hidden[0], self._model.words.idf[query]) * own
        asked = normalize(hidden[0]), weights / weights.sum(), hidden[0].mean(0)
        found = []
        for vectors, (row, first, last) in zip(hidden[1:], rows, strict=True):
            around = _around(row, before, slice(first, last), self._markers)
            found.append(self.head(*asked, vectors[first:last], vectors[around]))
        return np.array(found, np.float64)

    def _judge_pairs(
        self, head: PairJudge, chosen: Sequence[tuple[FirstLook, int]], apart: np.ndarray
    ) -> np.ndarray:
        """Return what the pair layers say of each sentence, (n,), at least one: of the best before,
        and the least of that for the others.
        """
        before = [look.scores[s] + self.head.nearness(look.facts) for look, s in chosen]
        best = top(before + apart, _PAIRS if len(chosen) <= READ_AGAIN else _PAIRS_TOGETHER)
        asked = chosen[0][0].query[: min(_ASKED, whole_tokens(self._model.backbone, 1) // 2)]
        prompt = np.append(asked, self._markers[1])
        rows = [
            self._row(look, sentence, prompt, PAIRED)
            for look, sentence in (chosen[i] for i in best)
        ]
        idf = self._model.words.idf[asked]
        found = []
        for hidden, (row, first, last) in zip(
            self._read([row for row, _, _ in rows], "pair"), rows, strict=True
        ):
            around = _around(row, 1 + len(asked), slice(first, last), self._markers)
            found.append(head.look(hidden, idf, len(asked), slice(first, last), around))
        judged = np.array(found, np.float64)
        values = np.full(len(chosen), judged.min())
        values[best] = judged
        return values

    def _row(
        self, look: FirstLook, sentence: int, prompt: np.ndarray, around: Around
    ) -> tuple[np.ndarray, int, int]:
        """Return the row of a sentence, and its tokens [first, last) there; see `lay_around`."""
        longest = whole_tokens(self._model.backbone, len(prompt))
        document = look.document
        kinds = document.kinds
        above = np.flatnonzero(_titles(kinds[:sentence]))[-_TITLES:]
        if len(above) == _TITLES and above[0] != above[1] - 1:  # only if they follow each other
            above = above[1:]
        if kinds[sentence] == INTRODUCED:
            others = np.flatnonzero(kinds[:sentence] != INTRODUCED)
            above = np.union1d(above, others[-1:])
        spans = (document.bounds[title : title + 2] for title in above)
        titles = np.concatenate([document.ids[:0], *(document.ids[a:b] for a, b in spans)])
        return lay_around(document, sentence, titles, longest, around, self._markers, prompt)

    def _read(self, rows: Sequence[np.ndarray], form: Form) -> list[np.ndarray]:
        """Return the hidden vectors (T, D) fp32 of each row."""
        requests = [Request(row, np.arange(len(row))) for row in rows]
        return [np.asarray(read.hidden) for read in self._model.engine_for(form).run(requests)]

    def _conclude(
        self, look: FirstLook, again: np.ndarray, apart: np.ndarray, floor: float, lowest: float
    ) -> SecondLook:
        """Return the final scores of a document.

        Args:
            again: (S,) what was said of its sentences; -inf where nothing was asked, which counts
                as `floor + lowest`.
            apart: (n,) what the judge layers said of what was read; `floor`: of the rest.
        """
        known = again > -np.inf
        judged = np.where(known, again, floor + lowest)
        led = np.where(known, _LEAD_AGAIN * leads(again, look.document.kinds), 0.0)
        if not self.head.calibrated:
            scores = look.scores + self.head.nearness(look.facts) + judged + led
            return SecondLook(scores.astype(np.float32), None, known, judged, apart, led)
        answers = self.head.answers(facts_with_judged(look.facts, apart, floor))
        scores = _both(self.head.inside(look.scores + judged + led), answers)
        return SecondLook(scores.astype(np.float32), answers, known, judged, apart, led)


def _both(inside: np.ndarray, answers: float) -> np.ndarray:
    """Return the logit of sigmoid(inside) * sigmoid(answers)."""
    log = -np.logaddexp(0, -inside) - np.logaddexp(0, -answers)
    return log - np.log(-np.expm1(np.minimum(log, -1e-12)))
