"""`runnel embed`: a vector for each row of a file."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.commands.display import Meter, note_compiling, print_json, say
from runnel.commands.resume import check, finished, text_digest
from runnel.commands.rows import Part, read_rows
from runnel.commands.vectors import FORMATS, Row, VectorLog
from runnel.errors import InputError
from runnel.records import Document
from runnel.text.shards import Shard

if TYPE_CHECKING:
    from runnel.models.embedder import Embedder
    from runnel.models.heads import Pooling


def run(
    texts: str,
    to: str,
    *,
    model: str,
    dtype: str,
    as_query: bool,
    shard: str | None,
    max_tokens: int | None,
    pooling: Pooling | None,
    as_json: bool,
) -> int:
    """Embed the rows of `texts` into the file `to`, going on where an earlier run of the same command was stopped."""
    out, part = Path(to), None if shard is None else Shard.parse(shard)
    if out.suffix == ".parquet":
        raise InputError(f"{to}: parquet needs a package that runnel does not depend on; write .npy or .jsonl and convert that")
    if out.suffix not in FORMATS:
        raise InputError(f"{to}: cannot write {out.suffix or 'a name without an ending'!r}; name it {' or '.join(FORMATS)}")
    if part is not None:
        out = part.beside(out)
    source = Part(texts, part)
    before = source.state()
    settings: dict[str, object] = {
        "model": model,
        "prompt": "query" if as_query else "document",
        "max_tokens": max_tokens,
        "pooling": pooling,
        "shard": str(part or Shard(1, 1)),
        "sha256": source.sha256(),
    }
    check(out, settings)  # before the model is loaded, which alone knows its fingerprint
    note_compiling()
    from runnel.models.embedder import Embedder

    embedder = Embedder.load(model, dtype=dtype, pooling=pooling)
    settings["fingerprint"] = embedder.model.backbone.fingerprint()
    facts = finished(out, settings)
    if facts is not None:
        say(f"note: {out} is finished already, {facts['count']:,} vectors")
    else:
        with VectorLog(out, embedder.dimension, settings) as log:
            work = Work(embedder, log, prompt=str(settings["prompt"]), max_tokens=max_tokens)
            work.run(read_rows(source))
            if source.state() != before:
                raise InputError(f"{texts} changed while it was read; remove {out}.part.json and run the command again")
            facts = log.finish(tokens=work.tokens)
        _report(work, facts)
    if as_json:
        print_json({"out": str(out), **facts})
    else:
        sys.stdout.write(f"{out}: {facts['count']:,} vectors of {facts['dimension']} numbers\n")
    return 0


class Work:
    """The rows on their way through the embedder."""

    def __init__(self, embedder: Embedder, log: VectorLog, *, prompt: str, max_tokens: int | None) -> None:
        self._embedder, self._log = embedder, log
        self._prompt = embedder.model.prompts.get(prompt, "")
        self._max_tokens, self.limit = max_tokens, embedder.text_limit(max_tokens)
        self._waiting: deque[Row] = deque()  # rows whose vectors are being made
        self.resumed = log.count
        self.tokens = 0
        self.empty: list[str] = []

    def run(self, documents: Iterator[Document]) -> None:
        """Write a vector for each document that has none yet."""
        with Meter("embedding") as meter:

            def count(tokens: int) -> None:
                self.tokens += tokens
                meter.add(tokens)

            vectors = self._embedder.encode_stream(
                self._texts(documents), prompt=self._prompt or None, max_tokens=self._max_tokens, progress=count
            )
            for vector in vectors:
                self._log.add(self._waiting.popleft(), vector)

    def _texts(self, documents: Iterator[Document]) -> Iterator[str]:
        done = self._log.rows()
        for document in documents:
            if not document.text.strip():
                self.empty.append(document.id)
                continue
            known = next(done, None)
            row = Row(document.id, text_digest(document.text), known.cut if known else self._is_cut(document.text))
            if known is None:
                self._waiting.append(row)
                yield document.text
            elif known != row:
                raise InputError(
                    f"the input has changed since the work began: row {known.id!r} is now {row.id!r} or has another text; "
                    f"remove {self._log.out}.part.json to start again"
                )
            else:
                ids = self._embedder.render([document.text], prompt=self._prompt or None, max_tokens=self._max_tokens)
                self.tokens += sum(map(len, ids))

    def _is_cut(self, text: str) -> bool:
        if self.limit is None:
            return False
        return len(self._embedder.model.tokenizer.encode(self._prompt + text).ids) > self.limit


def _report(work: Work, facts: dict[str, object]) -> None:
    if work.resumed:
        say(f"note: went on after {work.resumed:,} vectors of an earlier run")
    if work.empty:
        say(f"warning: {len(work.empty):,} rows without text were left out, the first is {work.empty[0]!r}")
    if facts["truncated"]:
        say(f"warning: {facts['truncated']:,} of {facts['count']:,} texts were cut to {work.limit} tokens")
