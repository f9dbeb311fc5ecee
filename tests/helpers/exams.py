"""Documents with questions, and language models that answer and judge by rule."""

import re
from typing import Any

from runnel.lab.evaluation.qa.loading import QaDocument, QaQuestion, QaSet

COLORS = ("red", "green", "blue", "black", "white")
FILLER = "The miller walked to the river and counted the boats."


def color(wheel: int) -> str:
    return COLORS[wheel % len(COLORS)]


def numbers(wheels: int) -> range:
    return range(10, 10 + wheels)  # of two digits: BM25 knows no words of one character


def mill(wheels: int, filler: int = 3) -> str:
    """Return a document with a sentence about each wheel, and others between them."""
    return " ".join(
        f"Wheel number {n} was painted {color(n)}. " + f"{FILLER} " * filler
        for n in numbers(wheels)
    ).strip()


def mill_set(name: str = "mills", wheels: int = 6, documents: int = 2, **more: Any) -> QaSet:
    """Return a set of questions about wheels; every document has the same text but for its first
    sentence.
    """
    texts = {f"d{d}": f"This is mill {d}. {mill(wheels)}" for d in range(documents)}
    questions = [
        QaQuestion(
            f"{d}-{n}",
            d,
            f"Which color was wheel number {n} painted?",
            (color(n),),
            category="creative",
        )
        for d in texts
        for n in numbers(wheels)
    ]
    return QaSet(
        name, {d: QaDocument(d, text) for d, text in texts.items()}, tuple(questions), **more
    )


def rows(data: QaSet) -> list[dict[str, Any]]:
    return [
        {
            "id": one.id,
            "question": one.question,
            "document": data.documents[one.document].text,
            "answers": list(one.answers),
        }
        | {"category": one.category}
        for one in data.questions
    ]


def follow(messages: list[dict[str, str]]) -> str:
    """Answer and judge as asked, from nothing but the prompt."""
    prompt = messages[-1]["content"]
    if "Candidate's answer:" in prompt:
        truth, attempt = re.findall(r"^(?:True|Candidate's) answer: (.*)$", prompt, re.MULTILINE)
        return f"They are compared.\nDECISION: {'YES' if truth in attempt else 'NO'}"
    if "readers who each read one part" in prompt:
        known = [
            answer
            for answer in re.findall(r"^ANSWER: (.*)$", prompt, re.MULTILINE)
            if answer != "unknown"
        ]
        return f"One reader knows.\nANSWER: {known[0] if known else 'unknown'}"
    if "word for word" in prompt:
        wheel = re.findall(r"wheel number (\d+)", prompt)[0]
        return "\n".join(re.findall(rf"Wheel number {wheel} was painted \w+\.", prompt)) or "\n"
    wheel = re.findall(r"wheel number (\d+)", prompt)[0]
    seen = re.search(rf"Wheel number {wheel} was painted (\w+)", prompt)
    return f"I looked for wheel {wheel}.\nANSWER: {seen[1] if seen else 'unknown'}"
