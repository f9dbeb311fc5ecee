"""Write examples about subsequences, several at the same time, and count what is kept, what is rejected and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from runnel.errors import EndpointError
from runnel.files import digest
from runnel.generation.endpoint import Reply
from runnel.lab.replies import Replies, Stopped, Usage
from runnel.lab.synthesis.prompts import VERSION, Rejected
from runnel.lab.synthesis.sources import Subsequence, check_language, refusal
from runnel.lab.synthesis.strategies import PLACE_UNITS, Draft, Encode, Strategy, write_chunk, write_link, write_pair
from runnel.lab.training.decontaminate import Decontaminator
from runnel.records import expect_choice, expect_count
from runnel.text.dialogue import Message
from runnel.text.sentences import Unit, tile

_WAVE = 64  # subsequences at a time; independent of the number of threads, so that the result is, too


@dataclass(frozen=True)
class Settings:
    """How examples are written.

    Raises:
        InputError: a number is too small, or the unit or the language is another one.
        MissingDependency: the package py3langid is missing, for `language`.
    """

    strategy: Strategy = "link"
    unit: Unit = "sentence"  # or "clauses" as in the code of paper E; a place has 20 sentences or 5 groups of clauses
    seed: int = 0
    reply_tokens: int = 2000  # the most tokens of a reply; one that is cut there is rejected
    threads: int = 8  # requests at a time
    language: str | None = None  # a code such as "en": subsequences in other languages are left out

    def __post_init__(self) -> None:
        if self.language is not None:
            check_language(self.language)
        expect_choice(self.unit, PLACE_UNITS, "unit")
        for name, least in (("seed", 0), ("reply_tokens", 1), ("threads", 1)):
            expect_count(getattr(self, name), name, least)


@dataclass
class Synthesis:
    """One run over subsequences."""

    replies: Replies
    settings: Settings
    encode: Encode  # returns the unit vectors of texts; needed for pairs
    guard: Decontaminator  # subsequences that overlap with its test sets are left out
    read: int = 0  # subsequences so far
    kept: Counter[int] = field(default_factory=Counter)  # examples by the length of their subsequence
    rejected: Counter[str] = field(default_factory=Counter)  # subsequences without an example, by reason
    stopped: Stopped | None = None  # why the run ended early, if it did
    failure: EndpointError | None = None  # the last one

    def rows(self, subsequences: Iterator[Subsequence], limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield examples as rows of evidence (docs/data.md), in the order of their subsequences, until there are `limit`.

        A run that was interrupted, or stopped, yields the same rows when it is repeated.
        """
        with ThreadPoolExecutor(self.settings.threads) as pool:
            while self.stopped is None:
                missing = _WAVE if limit is None else min(_WAVE, limit - self.kept.total())
                wave = list(islice(subsequences, missing))
                if not wave:
                    return
                refusals = [refusal(text.text, self.guard, self.settings.language) for text in wave]
                for text, outcome in zip(wave, pool.map(self._outcome, wave, refusals), strict=True):
                    self.read += not isinstance(outcome, Stopped)
                    if isinstance(outcome, Draft):
                        self.kept[text.length] += 1
                        yield self._row(text, outcome)
                    elif isinstance(outcome, Stopped):
                        self.stopped = self.stopped or outcome
                    else:
                        self.rejected[outcome] += 1

    def cost(self, used: Usage) -> dict[str, float]:
        """Return the tokens of a million examples at the rate of this run; empty without an example."""
        if not (kept := self.kept.total()):
            return {}
        return {"input_tokens": used.prompt_tokens * 1e6 / kept, "output_tokens": used.completion_tokens * 1e6 / kept}

    def _outcome(self, text: Subsequence, refusal: str | None) -> Draft | str | Stopped:
        """Return the example, the reason why there is none, or why it was not tried."""
        if refusal is not None:
            return refusal
        try:
            return self._draft(text)
        except Rejected as rejected:
            return str(rejected)
        except Stopped as stopped:
            return stopped
        except EndpointError as error:
            self.failure = error
            return "requests that the endpoint did not answer; repeat the command to ask again"

    def _draft(self, text: Subsequence) -> Draft:
        settings = self.settings
        rng = np.random.default_rng([settings.seed, int(digest(text.text), 16)])
        size = PLACE_UNITS[settings.unit]
        if settings.strategy == "pair":
            return write_pair(text, size, rng, self._ask, self.encode)
        return (write_link if settings.strategy == "link" else write_chunk)(text, size, rng, self._ask)

    def _ask(self, messages: list[Message]) -> Reply:
        return self.replies.ask(messages, max_tokens=self.settings.reply_tokens, version=VERSION)

    def _row(self, text: Subsequence, draft: Draft) -> dict[str, Any]:
        strategy, unit = self.settings.strategy, self.settings.unit
        row: dict[str, Any] = {"id": f"{strategy}-{digest(text.source, text.text, draft.question)}", "question": draft.question}
        row |= {"document": text.text, "evidence": text.spans[list(draft.units)].tolist()}
        if unit == "clauses":  # other tokenizers would group them in another way
            row["units"] = tile(text.spans[:, 0].tolist(), len(text.text)).tolist()
        row |= {"answer": draft.answer, "connection": draft.connection}
        row |= {"places": [list(text.span(place)) for place in draft.places], "distance": draft.distance}
        row |= {"strategy": strategy, "unit": unit, "source": text.source, "source_start": text.start, "length": text.length}
        return row | {"tokens": text.tokens, "prompts": VERSION, "llm_model": self.replies.endpoint.model}
