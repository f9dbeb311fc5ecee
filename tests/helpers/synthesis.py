"""Documents for synthesis, and a language model that follows its prompts by rule."""

import json
import re
from typing import Any

import numpy as np

from runnel.lab.synthesis.sources import Subsequence

NUMBERED = re.compile(r"^\[(\d+)\] (.*)$", re.MULTILINE)


def story(sentences: int, name: str = "Berg") -> str:
    """Return a text of short sentences, each different; every fifth ends its line."""
    return " ".join(
        f"In year {n} keeper {name} repaired wheel {n * 7}." + ("" if n % 5 else "\n")
        for n in range(sentences)
    )


def subsequence(sentences: int = 80, name: str = "Berg") -> Subsequence:
    """Return a subsequence with one unit per sentence of a story."""
    text = story(sentences, name).strip()
    spans = np.array([match.span() for match in re.finditer(r"In[^.]*\.", text)]).reshape(-1, 2)
    return Subsequence("story.txt", 0, text, spans, 12 * sentences, 2000)


def follow(messages: list[dict[str, str]]) -> str:
    """Reply as asked: the furthest sentence is connected, and the first and last of those shown are
    evidence.
    """
    prompt = messages[-1]["content"]
    lines = {int(number): text for number, text in NUMBERED.findall(prompt)}
    numbers = list(lines)
    if "The place:" in prompt:
        place = [
            int(number)
            for number, _ in NUMBERED.findall(prompt.partition("The document around it:")[0])
        ]
        far = max(numbers, key=lambda n: min(abs(n - one) for one in place))
        found: dict[str, Any] = {
            "connections": [{"sentence": far, "connection": f"{lines[place[0]]} {lines[far]}"}]
        }
    elif "Connection:" in prompt:
        found = {
            "question": (
                f"What did Berg do: {prompt.partition('Connection: ')[2].partition(chr(10))[0]}?"
            )
        }
    else:
        found = {"sentences": [min(numbers), max(numbers)], "answer": "He repaired wheels."}
        if "Question:" not in prompt:
            found["question"] = (
                f"Which wheels did Berg repair in {min(numbers)} and {max(numbers)}?"
            )
        if "First place:" in prompt:
            found["connection"] = "Both are repairs."
    return json.dumps(found)
