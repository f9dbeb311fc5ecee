"""A tokenizer for tiny models, without a vocabulary file."""

from collections.abc import Iterable

import numpy as np

from runnel.text.tokenizer import Encoded


class Bytes:
    """A tokenizer whose ids are the bytes of a text in Latin-1."""

    begin_id = end_id = None
    adds_space = False
    vocab_size = 256

    def encode(self, text: str) -> Encoded:
        ids = np.frombuffer(text.encode("latin-1", "replace"), np.uint8).astype(np.int32)
        return Encoded(ids, np.arange(len(ids)), np.arange(1, len(ids) + 1))

    encode_inside = encode

    def encode_batch(self, texts: Iterable[str]) -> list[Encoded]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(ids).decode("latin-1")
