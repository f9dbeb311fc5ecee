"""LongEmbed's synthetic sets, needle and passkey, generated: the same texts on every machine.

Each of the eight lengths is a set with 100 documents, of at most 3/4 words for each token, and 50 queries. A document hides one
sentence: a person's passkey in a text of five repeated sentences, or a fact in an essay.

Source: Zhu et al., LongEmbed, 2024, 3.2; the filler of passkey is that of Mohtashami and Jaggi, 2023.
Differs: the names, passkeys, facts and questions are ours, and so is the essay, whose sentences are put together at random from
parts; the published essays are Paul Graham's. So figures are not those of the published sets.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from runnel.files import write, write_jsonl
from runnel.lab.evaluation.tasks import TaskFiles, find_task
from runnel.records import expect_choice

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_DOCUMENTS, _QUERIES = 100, 50
_GRASS = ("The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.")
_FIRST = "Ada Amir Boris Carla Chen Dalia Emil Farah Goran Hana Igor Jonas Kira Leila Mateo Nadia Omar Petra Rosa Tariq".split()
_LAST = "Abbott Bauer Castro Dahl Ebert Fonseca Grant Horvat Ito Jansen Kovacs Lund Moreau Novak Okafor Petrov".split()


def _rows(name: str) -> list[list[str]]:
    lines = files("runnel.lab.evaluation").joinpath(name).read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines]


class Generated(NamedTuple):
    """A set of one length."""

    kind: str  # "needle" or "passkey"
    length: int  # tokens

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.length}"

    def write(self, folder: Path) -> TaskFiles:
        """Write the set as a BEIR folder in `folder`."""
        chance = random.Random(self.name)
        if self.kind == "passkey":
            questions, hidden = _passkeys(chance)
            filler = list(_GRASS) * (self.length // 12)  # more than the longest document of the set needs
        else:
            questions, hidden = (list(part) for part in zip(*_rows("needles.tsv"), strict=True))
            parts = list(zip(*_rows("essay.tsv"), strict=True))  # who, does, what, when
            filler = [" ".join(chance.choice(part) for part in parts) + "." for _ in range(self.length // 8)]
        documents = [_hide(one, filler, self.length * 3 // 4, chance) for one in hidden]
        asked = sorted(chance.sample(range(_DOCUMENTS), _QUERIES))
        place = folder / f"{self.name}.beir"
        place.mkdir(exist_ok=True)
        for kind, texts in (("corpus", enumerate(documents)), ("queries", ((i, questions[i]) for i in asked))):
            write_jsonl(place / f"{kind}.jsonl", ({"_id": str(i), "text": text} for i, text in texts))
        write(place / "qrels.tsv", "".join(f"{i} {i} 1\n" for i in asked))
        return replace(find_task(place), name=self.name)


def find_generated(name: str) -> list[Generated]:
    """Return the sets called "needle", "passkey", or one of them with its length: "needle-256"."""
    sets = [Generated(kind, length) for kind in ("needle", "passkey") for length in LENGTHS]
    expect_choice(name, ["needle", "passkey", *(one.name for one in sets)], "the task after generated:")
    return [one for one in sets if name in (one.kind, one.name)]


def _passkeys(chance: random.Random) -> tuple[list[str], list[str]]:
    """Return questions, and the sentences that answer them."""
    names = chance.sample([f"{first} {last}" for first in _FIRST for last in _LAST], _DOCUMENTS)
    keys = chance.sample(range(10_000, 100_000), _DOCUMENTS)
    pairs = zip(names, keys, strict=True)
    hidden = [f"{name}'s pass key is {key}. Remember it. {key} is the pass key for {name}." for name, key in pairs]
    return [f"What is the pass key for {name}?" for name in names], hidden


def _hide(sentence: str, filler: Sequence[str], words: int, chance: random.Random) -> str:
    """Return as much of the filler as fits into a number of words, with a sentence at a random place between two others."""
    left, kept = words - len(sentence.split()), 0
    while left >= len(filler[kept].split()):
        left, kept = left - len(filler[kept].split()), kept + 1
    place = chance.randint(0, kept)
    return " ".join([*filler[:place], sentence, *filler[place:kept]])
