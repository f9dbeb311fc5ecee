"""Made-up evidence for training tests: the query is the words of one sentence of the document."""

from pathlib import Path
from typing import Any

import numpy as np
from helpers.tiny import WORDS
from transformers import TrainingArguments

from runnel.lab.training.data import Evidence


def examples(count: int, *, seed: int = 0, sentences: tuple[int, int] = (5, 20)) -> list[Evidence]:
    rng = np.random.default_rng(seed)
    vocabulary = [word for word in WORDS if word != "a"]  # "a." might be an abbreviation
    made = []
    for number in range(count):
        words = [
            rng.choice(vocabulary, rng.integers(4, 9)).tolist()
            for _ in range(int(rng.integers(*sentences)))
        ]
        parts = [" ".join(w).capitalize() + ". " for w in words]
        chosen = int(rng.integers(len(parts)))
        start = sum(map(len, parts[:chosen]))
        span = (start, start + len(parts[chosen]) - 1)
        made.append(Evidence(" ".join(words[chosen]), "".join(parts), (span,), f"e{number}"))
    return made


def arguments(
    folder: Path, kind: type[TrainingArguments] = TrainingArguments, **changes: Any
) -> Any:
    """Arguments of that kind for a quiet run on the CPU."""
    settings: dict[str, Any] = {
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "seed": 3,
    }
    settings |= {"use_cpu": True, "disable_tqdm": True, "lr_scheduler_type": "constant"}
    return kind(output_dir=str(folder), **(settings | changes))
