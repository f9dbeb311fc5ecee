"""The text of an answer as it arrives, with its citations checked and sentences without one marked (docs/answers.md).

A sentence ends where `split_sentences` ends it and at every line break, but not inside a quotation. Time is linear in the length
of the text, and the parts in which it arrives make no difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from runnel.generation.endpoint import without_reasoning
from runnel.text.sentences import split_sentences

NO_ANSWER = "NO ANSWER"
NO_SOURCE = " (no source)"

# At most 16 numbers of at most six digits: a longer citation is text, and what may become one is short.
_PARTS = re.compile(
    r"\[(?P<numbers>\d{1,6}(?:\s{0,2}[,;]\s{0,2}\d{1,6}){0,15})\]|(?P<space>\s+)|[^\s\[。！？]*[。！？]|[^\s\[。！？]+|\["
)
_UNFINISHED = re.compile(r"\[[\d\s,;]{0,171}\Z")
_HEADING = re.compile(r"#{1,6}\s")
_REASONING, _REASONED = "<think>", "</think>"
_RECENT = 200  # characters of a sentence that decide whether it has ended


class CheckedText:
    """The checked text of an answer, without reasoning; "" instead of `NO_ANSWER`. Its lists become those of `CitedAnswer`."""

    def __init__(self, count: int, show: Callable[[str], None] | None = None) -> None:
        self._count, self._show = count, show
        self.cited: list[int] = []
        self.removed: list[int] = []
        self.unsourced: list[str] = []
        self._parts: list[str] = []
        self._held = ""  # arrived, but more text may change it
        self._space = ""  # whitespace at the end: a mark may come before it
        self._cut = ""  # whitespace before removed citations, restored if the next citation is kept
        self._sentence: list[str] = []  # without citations
        self._recent = ""  # the end of the sentence
        self._begun = self._supported = self._code = False

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def feed(self, part: str) -> None:
        self._held += part
        if self._begun or self._begins():
            unfinished = _UNFINISHED.search(self._held)
            self._pass_on(unfinished.start() if unfinished else len(self._held))

    def end(self) -> None:
        """Pass on what is held, after the last part."""
        if not self._begun:
            self._held = without_reasoning(self._held)
        if self._begun or not self._held.startswith(NO_ANSWER):
            self._pass_on(len(self._held), last=True)

    def _begins(self) -> bool:
        """Remove whitespace and reasoning from the beginning; return whether the text has begun, and not with `NO_ANSWER`."""
        self._held = self._held.lstrip()
        if self._held.startswith(_REASONING) and _REASONED not in self._held:
            self._held = _REASONING + self._held[len(_REASONING) :][-len(_REASONED) :]
            return False
        self._held = without_reasoning(self._held)
        if NO_ANSWER.startswith(self._held[: len(NO_ANSWER)]):
            self._held = self._held[: len(NO_ANSWER)]
            return False
        self._begun = not _REASONING.startswith(self._held[: len(_REASONING)])
        return self._begun

    def _pass_on(self, stop: int, *, last: bool = False) -> None:
        shown = len(self._parts)
        for part in _PARTS.finditer(self._held, 0, stop):
            if part["numbers"]:
                self._cite([int(number) for number in re.findall(r"\d+", part["numbers"])])
            elif part["space"]:
                self._space, self._cut = self._space + part["space"], ""
                if "\n" in part["space"]:
                    self._end_sentence(line=True)
            else:
                self._write(part[0])
        self._held = self._held[stop:]
        if last:
            self._end_sentence(line=True)
        if self._show is not None and len(self._parts) > shown:
            self._show("".join(self._parts[shown:]))

    def _write(self, word: str) -> None:
        if self._ends_before(word[0]):
            self._end_sentence()
        self._parts += [self._space, word]
        self._sentence += [self._space, word] if self._sentence else [word]
        self._recent = (self._recent + (self._space and " ") + word)[-_RECENT:]
        self._space = self._cut = ""

    def _cite(self, numbers: list[int]) -> None:
        if self._supported and self._ends_before("["):
            self._end_sentence()
        for number in numbers:
            seen = self.cited if 1 <= number <= self._count else self.removed
            if number not in seen:
                seen.append(number)
        kept = [f"[{number}]" for number in numbers if 1 <= number <= self._count]
        if kept:
            self._parts += [self._space, self._cut, *kept]
            self._space, self._cut, self._supported = "", "", True
        else:
            rest = self._space.rstrip(" \t")
            self._space, self._cut = rest, self._space[len(rest) :] or self._cut

    def _ends_before(self, character: str) -> bool:
        """Return whether the sentence so far has ended before this character."""
        if not self._sentence or not (self._space or self._recent.endswith(("。", "！", "？"))):
            return False
        start = "".join(self._sentence[:8])
        if self._code or start.startswith("```") or _HEADING.match(start):
            return False
        if self._recent.count("“") > self._recent.count("”") or self._recent.count('"') % 2:
            return False
        next_character = character if character.isalnum() else "A"  # a mark, as if a word began there
        window = self._recent.replace("*", "") + (self._space and " ") + next_character
        return int(split_sentences(window)[-1, 0]) == len(window) - 1

    def _end_sentence(self, *, line: bool = False) -> None:
        """Mark the sentence if it has no source, and begin the next."""
        text, supported = "".join(self._sentence), self._supported
        self._sentence, self._recent, self._supported = [], "", False
        fence = text.startswith("```") and "`" not in text.lstrip("`")
        if fence:
            self._code = not self._code
        is_title = _HEADING.match(text) or (line and text.rstrip("*_").endswith((":", "：")))
        if not (supported or fence or self._code or is_title) and re.search(r"\w", text):
            self.unsourced.append(text)
            self._parts.append(NO_SOURCE)
