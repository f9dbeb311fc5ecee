"""Embedders behind an API like OpenAI's, for comparisons: api:NAME (docs/evaluation.md)."""

from __future__ import annotations

import json
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException

import numpy as np

from runnel.errors import InputError, ReadError

log = logging.getLogger("runnel")
API = "api:"
EMBEDDERS = (API, "st:", "st-code:")  # names that say that a model is an embedder
_TEXTS = 128  # in one request
_WAITS = (1, 2, 4, 8, 16)  # seconds before each repetition of a request
_AGAIN = (408, 429, 500, 502, 503, 504)


class ApiEmbedder:
    """A model behind POST URL/embeddings, which takes "model" and "input" and returns "data": [{"index", "embedding"}]."""

    def __init__(self, name: str, *, prompts: Mapping[str, str] | None = None) -> None:
        self.name, self.prompts = name, dict(prompts or {})
        self._url = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1").rstrip("/") + "/embeddings"
        if not self._url.startswith(("http://", "https://")):
            raise InputError(f"OPENAI_BASE_URL is {self._url!r}; expected a URL with http:// or https://")

    def is_empty(self, text: str) -> bool:
        return not text.strip()

    def encode_query(self, texts: Sequence[str], max_tokens: int | None = None) -> np.ndarray:
        """Return unit vectors of queries, float32 (n, d)."""
        return self._encode(texts, "query", max_tokens)

    def encode_document(self, texts: Sequence[str], max_tokens: int | None = None) -> np.ndarray:
        """Return unit vectors of documents, float32 (n, d)."""
        return self._encode(texts, "document", max_tokens)

    def _encode(self, texts: Sequence[str], kind: str, max_tokens: int | None) -> np.ndarray:
        if max_tokens is not None:
            raise InputError(f"api:{self.name} counts its own tokens; leave --max-tokens and --max-query-tokens out")
        whole = [self.prompts.get(kind, "") + text for text in texts]
        found = [row for start in range(0, len(whole), _TEXTS) for row in self._request(whole[start : start + _TEXTS])]
        vectors = np.asarray(found, np.float32)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)

    def _request(self, texts: list[str]) -> list[list[float]]:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        body = json.dumps({"model": self.name, "input": texts}).encode()
        answer = self._post(urllib.request.Request(self._url, body, headers))
        try:
            rows = sorted(json.loads(answer)["data"], key=lambda row: row["index"])
            if [row["index"] for row in rows] != list(range(len(texts))) or len({len(row["embedding"]) for row in rows}) != 1:
                raise ValueError
            return [row["embedding"] for row in rows]
        except (ValueError, KeyError, TypeError) as error:
            what = answer[:200].decode(errors="replace")
            raise ReadError(f"{self._url} answered {what!r}; expected one embedding for each of {len(texts)} texts") from error

    def _post(self, request: urllib.request.Request) -> bytes:
        for wait in (*_WAITS, None):
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    return bytes(answer.read())
            except urllib.error.HTTPError as error:
                why = f"{error.code} {error.reason}: {error.read(300).decode(errors='replace')}"
                again = error.code in _AGAIN
            except (OSError, HTTPException) as error:
                why, again = str(error), True
            if wait is None or not again:
                raise ReadError(
                    f"{self._url} did not give embeddings ({why}); check the URL, the key and the model {self.name!r}"
                )
            log.warning("%s: %s; trying again in %d s", self._url, why, wait)
            time.sleep(wait)
        raise AssertionError  # the loop returns or raises
