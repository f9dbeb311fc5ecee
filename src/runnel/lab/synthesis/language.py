"""The texts that are not asked about: parts of test sets, and texts in another language.

Source: paper E's code keeps documents that are English with a probability of at least 0.8, by langdetect.
Differs: by py3langid, which has no random state.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from runnel.errors import needing
from runnel.lab.training.data import Evidence
from runnel.lab.training.decontaminate import Decontaminator
from runnel.records import expect_choice

PROBABILITY = 0.8  # the least


def check_language(code: str) -> None:
    """Raise InputError if texts cannot be recognized as this language, and MissingDependency without py3langid."""
    expect_choice(code, sorted(_identifier().labels), "the language")


def is_language(text: str, code: str) -> bool:
    """Return whether a text is in a language with a probability of at least `PROBABILITY`."""
    return dict(_identifier().rank(text)).get(code, 0.0) >= PROBABILITY


def refusal(text: str, guard: Decontaminator, language: str | None) -> str | None:
    """Return the reason not to ask about a text, a part of a document, if there is one."""
    if guard.contaminated(Evidence("", text, ())):
        return "subsequences that overlap with a test set"
    return None if language is None or is_language(text, language) else f"subsequences that are not in {language}"


@cache
def _identifier() -> Any:
    with needing("recognizing languages needs the package py3langid", "answers"):
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
