"""Time the splitting of text that is made to be slow: python -m tools.hostile_text [characters].

Prints, for each kind of text, the seconds that sentences, units of clauses and pocket's tokens
take, and the factor against half of the text. A linear step has a factor of about 2.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from runnel.models.folder import BUILT_IN
from runnel.text.sentences import read_sentences, split_sentences
from runnel.text.tokenizers import read_tokenizer

UNITS = {
    "abbreviations": "e.g. ",
    "titles": "Mr. ",
    "initials": "A. ",
    "dots": ".",
    "spaced dots": ". ",
    "list items": "- a\n",
    "numbers": "1. ",
    "columns": "cell | ",
    "a row of a table": "| x ",
    "opening quotes": "\u201c",
    "mixed quotes": "\u300c\u300d`\ufe0f",
    "no whitespace": "a",
    "combining marks": "e\u0301",
    "commas": "a, ",
    "clauses": "a; (b. ",
    "spaces": "a" + " " * 2000 + "\n",
    "line ends": ".\n",
    "headings": "a\n===\n",
    "ideographic": "\u4e2d\u3002",
}


def text(unit: str, characters: int) -> str:
    """`unit` repeated to that many characters."""
    return (unit * (characters // len(unit) + 1))[:characters]


def main(characters: int) -> None:
    """Time every kind of text at half of the characters and at all of them."""
    tokenizer = read_tokenizer(BUILT_IN["pocket"])
    steps: dict[str, Callable[[str], object]] = {
        "sentences": split_sentences,
        "clauses": lambda whole: read_sentences(whole, [], unit="clauses"),
        "tokens": tokenizer.encode,
    }
    split_sentences("Import what is imported late. ")
    print(f"{characters:,} characters".ljust(24), *(name.rjust(16) for name in steps))
    for name, unit in UNITS.items():
        cells = []
        for step in steps.values():
            seconds = []
            for size in (characters // 2, characters):
                whole = text(unit, size)
                start = time.process_time()
                step(whole)
                seconds.append(time.process_time() - start)
            cells.append(f"{seconds[1]:.2f} s x{seconds[1] / max(seconds[0], 1e-9):.1f}".rjust(16))
        print(name.ljust(24), *cells)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500_000)
