"""Embedder: one vector for a text of any length, from one pass with constant model memory.

n  texts      d  width of the vectors      T  tokens      D  width of hidden vectors
"""

import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from runnel.checks import expect_count, expect_loaded, expect_series, expect_text
from runnel.errors import InputError
from runnel.models.folder import load_model
from runnel.models.head import Pooling
from runnel.models.model import Model, WeightDtype
from runnel.models.pocket.reader import PassageReader
from runnel.models.precision import Precision, check_precision, check_width, quantize, truncated
from runnel.models.reading import Reader, Stream, expect_filled, spans_in
from runnel.request import Array, Progress, Request, TokenCount

log = logging.getLogger("runnel")
_BATCH = 32  # texts per tokenizer call, and vectors per call of the head


class Embedder:
    """A model that computes vectors for texts. Make one with `Embedder.load`.

    Examples:
        >>> embedder = Embedder.load("pocket")
        >>> embedder.encode(["first text", "second text"]).shape
        (2, 384)
    """

    def __init__(self, model: Model, *, truncate_dim: int | None = None) -> None:
        expect_loaded(model, "Embedder")
        self.model = model
        self._head = model.head("embed")
        size = self._head.options.get("size")
        width = size if isinstance(size, int) else model.backbone.hidden_size
        check_width(truncate_dim, width)
        self.dimension = truncate_dim or width  # d
        self.pooling: Pooling = self._head.pooling
        self.reader = reader_of(self)
        self.truncated = 0  # texts cut by `max_tokens` in the last encode call

    @classmethod
    def load(
        cls,
        name: str | Path,
        dtype: WeightDtype = "auto",
        device: str = "auto",
        *,
        pooling: Pooling | None = None,
        truncate_dim: int | None = None,
    ) -> Self:
        """Load a built-in model ("pocket", "minilm-mamba2", "pocket-mamba2"), a folder, a
        checkpoint, a sentence-transformers folder, or a hub id.

        Args:
            pooling: use the hidden vector of the first token ("cls", transformers only) or of the
                last token ("eos"), or the mean of all ("mean"); default: the pooling the model was
                trained with, or the papers' choice (docs/models.md).
            truncate_dim: cut all vectors to this many numbers, of unit length again
                (docs/embed.md).

        Raises:
            CheckpointError: the model is missing or cannot embed.
            InputError: the model does not support this pooling, or has fewer than `truncate_dim`
                numbers.
        """
        return cls(
            load_model(name, dtype, device, pooling=pooling, arrays=True), truncate_dim=truncate_dim
        )

    def save(self, folder: str | Path, *, weights: str = "as_is") -> None:
        """Write a model folder (see `Model.save`)."""
        self.model.save(folder, weights=weights, job="embed")

    def encode(
        self,
        texts: str | Iterable[str],
        *,
        prompt: str | None = None,
        max_tokens: int | None = None,
        truncate_dim: int | None = None,
        precision: Precision = "float32",
        ranges: np.ndarray | None = None,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """Return the unit vectors of texts, float32 (n, d); for one string (d,).

        Args:
            texts: strings, or any iterable of them.
            prompt: the name of one of the model's prompts, or text put before each text.
            max_tokens: cut longer texts at their end so that text, prompt and special tokens are at
                most this many tokens in total, as sentence-transformers counts, or as many as the
                model can read if that is less; the number of cut texts is in `truncated`, with a
                warning. By default nothing is cut.
            truncate_dim: cut the vectors to this many numbers, of unit length again.
            precision: "float32", "int8", "uint8", "binary" or "ubinary", as
                `runnel.models.precision.quantize` describes.
            ranges: for int8 and uint8; see there.
            progress: called after each step with (tokens done, None).

        Raises:
            InputError: a text is not a string, is empty (`is_empty`), or is longer than a
                transformer can read; the model has no prompt of that name; `max_tokens` leaves no
                room for the text; the vectors have fewer than `truncate_dim` numbers; or precision
                and ranges do not fit together.
        """
        check_width(truncate_dim, self.dimension)
        check_precision(precision, ranges, truncate_dim or self.dimension)
        single = isinstance(texts, str)
        series = [texts] if isinstance(texts, str) else texts
        rows = list(
            self.encode_stream(series, prompt=prompt, max_tokens=max_tokens, progress=progress)
        )
        vectors = np.stack(rows) if rows else np.empty((0, self.dimension), dtype=np.float32)
        vectors = quantize(truncated(vectors, truncate_dim or self.dimension), precision, ranges)
        return vectors[0] if single else vectors

    def encode_query(self, texts: str | Iterable[str], **options: Any) -> np.ndarray:
        """Run `encode` with the model's query prompt, if it has one."""
        return self.encode(texts, **{"prompt": self.model.prompts.get("query"), **options})

    def encode_document(self, texts: str | Iterable[str], **options: Any) -> np.ndarray:
        """Run `encode` with the model's document prompt, if it has one."""
        return self.encode(texts, **{"prompt": self.model.prompts.get("document"), **options})

    def encode_stream(
        self,
        texts: Iterable[str],
        *,
        prompt: str | None = None,
        max_tokens: int | None = None,
        progress: Progress | None = None,
    ) -> Iterator[np.ndarray]:
        """Yield the vectors (d,) of texts, in their order; `texts` may be endless. Arguments and
        errors are those of `encode`.

        A text is taken from `texts` when the engine has room for it, at most a few hundred texts
        before its vector is yielded.
        """
        yield from self.encode_rows(
            self.render(texts, prompt=prompt, max_tokens=max_tokens), progress
        )
        if self.truncated:
            log.warning(
                "%d texts were cut to %s tokens",
                self.truncated,
                self.model.text_limit(max_tokens) or "their template's",
            )

    def is_empty(self, text: str) -> bool:
        """Return whether a text cannot be embedded because it is whitespace or has no token of this
        model, such as U+200B.
        """
        return self.model.tokenizer.is_empty(text)

    def encode_rows(
        self,
        rows: Iterable[np.ndarray],
        progress: Progress | None = None,
        normalize: bool = True,
    ) -> Iterator[np.ndarray]:
        """Yield the vectors of texts given as ids from `render`; see `encode_stream`.

        Args:
            normalize: False: yield the pooled hidden vectors (D,) as they are.

        Raises:
            InputError: `normalize` is False and the head has weights, so its pooled hidden vectors
                are not vectors of texts.
        """
        if not (normalize or self._head.only_normalizes):
            raise InputError(
                f"the vectors of {self.model.source} always have unit length: a layer comes between"
                " pooling and normalizing; leave normalize out"
            )
        # `map` yields results as they come, also of requests that failed: `get` raises their error
        results = self.model.engine.map(map(self._head.request, rows), TokenCount(progress).add)
        while batch := [
            self._head.pooled(result.get()) for result in itertools.islice(results, _BATCH)
        ]:
            yield from self.vectors(batch) if normalize else np.concatenate(batch)

    def token_vectors(
        self, rows: Iterable[np.ndarray], progress: Progress | None = None
    ) -> Iterator[np.ndarray]:
        """Yield the hidden vectors float32 (T, D) of all tokens of ids (T,) from `render`, special
        ones included; the vector of a text is pooled from them.
        """
        requests = (Request(row, positions=np.arange(len(row))) for row in rows)
        for result in self.model.engine.map(requests, TokenCount(progress).add):
            yield np.asarray(result.get().hidden)

    def vectors(self, pooled: Sequence[Array]) -> np.ndarray:
        """Return the vectors (n, d) float32 that the head makes of pooled hidden vectors: arrays
        with any number of rows each (any, D), such as the passages of one document, n rows in all.
        """
        return truncated(self._head.vectors(pooled), self.dimension)

    def render(
        self, texts: Iterable[str], *, prompt: str | None = None, max_tokens: int | None = None
    ) -> Iterator[np.ndarray]:
        """Yield the ids (T,) int32 to read for each text, special tokens included. Arguments and
        errors as for `encode`.
        """
        if max_tokens is not None:
            expect_count(max_tokens, "max_tokens")
        max_tokens = self.model.text_limit(max_tokens)
        self.truncated = 0
        expect_series(texts, "texts", "a string or an iterable of strings, in an order")
        source = iter(texts)
        template = self.model.templates["document"]
        place = itertools.count()
        prefix = self.model.prompt(prompt)
        before = template.lead(self.model.tokenizer, "document") + prefix
        if max_tokens is not None:
            fixed = template.encode(self.model.tokenizer, "document", prefix).ids
            if (
                around := len(template.render(self.model.tokenizer, document=fixed).ids)
            ) >= max_tokens:
                kind = "tokens of the prompt and special tokens" if prefix else "special tokens"
                raise InputError(
                    f"max_tokens is {max_tokens}, but {around} {kind} surround every text;"
                    " increase it"
                )
        while batch := list(itertools.islice(source, _BATCH)):
            for text, number in zip(batch, place, strict=False):
                expect_text(text, f"texts[{number}]")
                expect_filled(self, text, f"text, texts[{number}]")
            # A text is encoded with the words before it: a space, if the template has one there
            # (`lead`), and the prompt. `render` adds the special tokens and cuts to `max_tokens`.
            whole = [before + text for text in batch]
            for text, encoded in zip(whole, self.model.tokenizer.encode_batch(whole), strict=True):
                rendered = template.render(
                    self.model.tokenizer, document=encoded.ids, max_tokens=max_tokens
                )
                self.truncated += rendered.cut > 0
                row = rendered.ids
                # An encoder reads a long text in passages, each between special tokens. Then this
                # row is not used: the ids that `max_tokens` has left are laid out.
                if self.reader.splits(row):
                    row, _ = self.reader.lay_out(
                        text, encoded.slice(0, len(encoded) - rendered.cut)
                    )
                yield row

    def encode_spans(
        self, text: str, spans: Sequence[tuple[int, int]] | np.ndarray, *, prompt: str | None = None
    ) -> np.ndarray:
        """Return a vector for each [start, end) character span, float32 (len(spans), d), from one
        pass over `text`.

        A vector is the mean of the hidden vectors of the tokens that start inside the span, or the
        last of them, by the model's pooling. It depends on the text before the span too.

        Raises:
            InputError: spans are not pairs of whole numbers; a span is outside the text, is empty
                or holds no token; or the model pools the first token.
        """
        if self.pooling == "cls":
            raise InputError(
                "this model pools the first token, so spans have no vectors; load it with"
                " pooling='mean' or 'eos'"
            )
        expect_text(text, "the text")
        spans = spans_in(text, spans)
        if not len(spans):
            return np.empty((0, self.dimension), dtype=np.float32)
        prefix = self.model.prompt(prompt)
        encoded = self.model.templates["document"].encode(
            self.model.tokenizer, "document", prefix + text
        )
        first, last = np.searchsorted(encoded.starts, spans.T + len(prefix))
        empty = np.flatnonzero(first >= last)
        if len(empty):
            raise InputError(
                f"span {spans[empty[0]].tolist()} ({text[slice(*spans[empty[0]])]!r}) holds no"
                " token; widen it"
            )
        row, places = self.reader.lay_out(prefix + text, encoded)
        ranges = np.stack([places[first], places[last - 1] + 1], axis=1)
        request = (
            Request(row, ranges=ranges)
            if self.pooling == "mean"
            else Request(row, ranges[:, 1] - 1)
        )
        (result,) = self.model.engine.run([request])
        return self.vectors([self._head.pooled(result)])

    def stream(self, *, prompt: str | None = None) -> Stream:
        """Open a stream for a text that arrives in pieces; see `Stream`.

        Raises:
            StateError: the model is a transformer, which has no state to continue from.
        """
        return self._stream_kind()(self, self.model.prompt(prompt))

    def load_stream(self, path: str | Path) -> Stream:
        """Continue a stream written by `Stream.save`.

        Raises:
            StateError: the file is damaged or was written by another model, or the model is a
                transformer.
        """
        return self._stream_kind().load(self, path)

    def _stream_kind(self) -> type[Stream]:
        if self.reader.stream is None:
            # raises for any text that continues; `zeros(1)` are the bounds of no texts
            self.model.backbone.check_whole(np.zeros(1), continues=True)
            raise AssertionError
        return self.reader.stream


def reader_of(embedder: Embedder) -> Reader:
    """Return the reader of an embedder's documents. Its class depends on how the backbone reads a
    text: in passages, with a state, or whole.
    """
    backbone = embedder.model.backbone
    if backbone.passage_tokens is not None:
        return PassageReader(embedder)
    if backbone.recurrent:
        from runnel.models.recurrent.readers import StateReader  # imports torch

        return StateReader(embedder)
    from runnel.models.foreign.reader import WholeReader

    return WholeReader(embedder)
