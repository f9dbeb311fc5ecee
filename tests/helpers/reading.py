"""What models read, counted."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from runnel.engine import Engine
from runnel.models.pocket import looks, scorer, steps
from runnel.models.pocket.steps import read_blocks


def count_tokens(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets the number of tokens of each text that a model reads from now on."""
    read: list[Any] = []
    of_engine = Engine.map

    def counted(texts: Iterable[Any], tokens: Callable[[Any], int]) -> Iterator[Any]:
        for text in texts:
            read.append(tokens(text))
            yield text

    def read_requests(engine: Engine, requests: Iterable[Any], *more: Any) -> Any:
        return of_engine(engine, counted(requests, lambda request: len(request.ids)), *more)

    def read_rows(model: Any, forms: Any, rows: Iterable[Any], *count: Any) -> Any:
        return read_blocks(model, forms, counted(rows, len), *count)

    monkeypatch.setattr(Engine, "map", read_requests)
    for module in (looks, scorer, steps):
        monkeypatch.setattr(module, "read_blocks", read_rows)
    return read
