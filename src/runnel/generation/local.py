"""A recurrent language model on this machine, asked as an endpoint is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock

from runnel.errors import InputError
from runnel.generation.endpoint import Reply
from runnel.models.language_model import LanguageModel
from runnel.text.dialogue import Message, dialogue

LOCAL = "local:"  # before the name of a model, instead of the URL of an endpoint


class LocalModel:
    """A `LanguageModel` that answers as an `Endpoint` does, one request after another, to a plain dialogue without a template."""

    def __init__(self, name: str | Path, dtype: str = "auto", device: str = "auto") -> None:
        self.language_model = LanguageModel.load(name, dtype, device)
        self.url = f"{LOCAL}{name}"
        self.model = f"{name}@{self.language_model.backbone.fingerprint()[:12]}"
        self._lock = Lock()

    def complete(
        self, messages: list[Message], *, max_tokens: int, temperature: float = 0.0, on_text: Callable[[str], None] | None = None
    ) -> Reply:
        """Return the model's reply; `on_text` is called once, with the whole text."""
        if temperature:
            raise InputError(f"the temperature is {temperature}; a local model writes the most likely token, at temperature 0")
        with self._lock:
            written = self.language_model.generate(dialogue(messages), max_tokens=max_tokens)
        if on_text is not None:
            on_text(written.text)
        read = int(written.state.tokens[0]) - len(written.ids)
        return Reply(written.text, written.finish, read, len(written.ids))
