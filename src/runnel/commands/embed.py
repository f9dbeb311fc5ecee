"""`runnel embed`: a vector for each row of a file."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from runnel.batching import grouped
from runnel.commands.display import (
    DTYPES,
    Dtype,
    Json,
    Meter,
    Model,
    note_compiling,
    print_json,
    print_text,
    say,
)
from runnel.commands.rows import RowFile, Shard, read_rows
from runnel.commands.runs import say_resumed
from runnel.errors import InputError, counted, describe
from runnel.files import digest, file_digest, replacing, write_jsonl
from runnel.journal import Journal, Row
from runnel.records import Document

if TYPE_CHECKING:
    import numpy as np

    from runnel.models.embedder import Embedder
    from runnel.request import TokenCount

# A block is about 16 steps of the engine: shorter blocks cost speed, longer blocks lose more work
# when the command is interrupted.
_BLOCK_CHARACTERS = 1 << 16
_BLOCK_ROWS = 2048
FORMATS = (".npy", ".jsonl")
_VECTORS = 4096  # in memory at a time

Input = Annotated[
    str,
    typer.Argument(
        metavar="INPUT", help="jsonl, csv or tsv (id, text), or txt (a text a line); - is stdin."
    ),
]
ShardOf = Annotated[
    str | None,
    typer.Option(
        metavar="I/N", help="Take shard I of N of the file; write OUT-0000I-of-0000N.npy."
    ),
]
PoolingOption = Annotated[
    Literal["cls", "eos", "mean"] | None,
    typer.Option(help="A text's vector: first token's, last's, mean (default: the model's)."),
]
TruncateDim = Annotated[
    int | None, typer.Option(min=1, help="Cut vectors to this many numbers, of unit length again.")
]
PrecisionOption = Annotated[
    Literal["float32", "int8", "uint8", "binary", "ubinary"],
    typer.Option(help="Numbers of OUT; int8 and uint8 also write their ranges to OUT.ranges.npy."),
]
Ranges = Annotated[
    Path | None, typer.Option(help="Ranges of int8 and uint8: the OUT.ranges.npy of the documents.")
]


def embed(
    texts: Input,
    *,
    model: Model = "pocket",
    dtype: Dtype = "auto",
    to: Annotated[str, typer.Option(help="OUT.npy (ids go to OUT.ids) or OUT.jsonl.")],
    as_query: Annotated[
        bool,
        typer.Option("--query/--document", help="Which of the model's prompts each text gets."),
    ] = False,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Cut texts to this many tokens, special ones included."),
    ] = None,
    shard: ShardOf = None,
    pooling: PoolingOption = None,
    truncate_dim: TruncateDim = None,
    precision: PrecisionOption = "float32",
    ranges: Ranges = None,
    as_json: Json = False,
) -> int:
    """Embed each text of INPUT. Interrupted work resumes when you repeat the command.

    Writes a vector for each text: OUT.npy, with the ids in OUT.ids, or OUT.jsonl.
    Example: runnel embed texts.jsonl --to vectors.npy
    """
    part = None if shard is None else Shard.parse(shard)
    calibrates = _calibrates(precision, ranges, alone=part is None and not as_query)
    out = Path(to) if part is None else part.output_path(Path(to))
    source = RowFile(texts, part)
    before = source.signature()
    settings: dict[str, object] = {
        "model": model,
        "prompt": "query" if as_query else "document",
        "max_tokens": max_tokens,
        "pooling": pooling,
        "truncate_dim": truncate_dim,
        "precision": None if precision == "float32" else precision,
        "ranges": None if ranges is None else file_digest(str(ranges)),
        "shard": str(part or Shard(1, 1)),
        "sha256": source.sha256(),
    }
    # it compares the settings before the model is loaded
    with vector_journal(out, settings, ranges=calibrates) as journal:
        note_compiling()
        from runnel.models.embedder import Embedder

        embedder = Embedder.load(
            model, dtype=DTYPES[dtype], pooling=pooling, truncate_dim=truncate_dim
        )
        if as_query and not embedder.model.prompts.get("query"):
            say(f"note: {model} has no query prompt: --query puts nothing before the texts")
        about = journal.begin(fingerprint=embedder.model.fingerprint())
        if about is not None:
            say(f"note: {out} is finished already, {counted(about['count'], 'vector')}")
        else:
            bounds = None if ranges is None else load_ranges(ranges, embedder.dimension)
            work = BlockEmbedder(
                embedder, journal, prompt=str(settings["prompt"]), max_tokens=max_tokens
            )
            work.run(read_rows(source))
            if source.signature() != before:
                raise journal.changed_error(f"{texts} changed while it was read")
            about = finish_vectors(journal, embedder.dimension, precision, bounds)
            if work.empty:
                say(
                    f"warning: left out: {counted(len(work.empty), 'row')} without text, the first"
                    f" is {work.empty[0]!r}"
                )
            _report_cut(work, about)
    if as_json:
        print_json({"out": str(out), **about})
    else:
        form = "" if precision == "float32" else f", {precision}"
        print_text(
            f"{out}: {counted(about['count'], 'vector')} of {about['dimension']} numbers{form}"
        )
    return 0


def _calibrates(precision: str, ranges: Path | None, *, alone: bool) -> bool:
    """Return whether ranges of 8-bit vectors must be computed; `alone`: of all documents, which are
    in the input.
    """
    calibrated = precision in ("int8", "uint8")
    if (ranges is None and not alone) if calibrated else ranges is not None:
        needs = "of queries and shards needs" if calibrated else "has no use for"
        file = (
            "the OUT.ranges.npy that is written with int8 or uint8 vectors of documents, or of a"
            " sample, without --shard"
        )
        raise InputError(f"--precision {precision} {needs} --ranges FILE: {file}")
    return calibrated and ranges is None


def embed_corpus(
    embedder: Embedder,
    corpus: Iterable[Document],
    path: Path,
    settings: Mapping[str, object],
    max_tokens: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors of the documents with a text, computed once and stored at `path`, and
    their rows in the corpus.
    """
    import numpy as np

    with vector_journal(path, settings) as journal:
        if journal.begin() is None:
            work = BlockEmbedder(embedder, journal, prompt="document", max_tokens=max_tokens)
            work.run(corpus)
            _report_cut(work, finish_vectors(journal, embedder.dimension))
    rows = np.array(
        [row for row, document in enumerate(corpus) if not embedder.is_empty(document.text)],
        dtype=np.int64,
    )
    return np.load(path, mmap_mode="r"), rows


class BlockEmbedder:
    """A worker that embeds rows in blocks, each of which is written whole."""

    def __init__(
        self, embedder: Embedder, journal: Journal, *, prompt: str, max_tokens: int | None
    ) -> None:
        self._embedder, self._journal = embedder, journal
        self._prompt = embedder.model.prompts.get(prompt, "")
        self._max_tokens, self.limit = max_tokens, embedder.text_limit(max_tokens)
        self.empty: list[str] = []

    def run(self, documents: Iterable[Document]) -> None:
        """Write a vector for each document that has none yet."""
        from runnel.request import TokenCount

        say_resumed(self._journal, "vector")
        left = self._with_text(documents)
        for row in self._journal.rows():
            document = next(left, None)
            if document is None or row.value[:2] != [document.id, digest(document.text)]:
                now = "missing" if document is None else f"{document.id!r} or has another text"
                raise self._journal.changed_error(
                    f"the input has changed since the work began: row {row.value[0]!r} is now {now}"
                )
        with Meter("embedding") as meter:
            count = TokenCount(meter)
            for block in grouped(
                left, lambda document: len(document.text), _BLOCK_CHARACTERS, _BLOCK_ROWS
            ):
                self._embed(block, count)

    def _embed(self, block: Sequence[Document], count: TokenCount) -> None:
        texts = [document.text for document in block]
        ids, values, cut = [], [], 0
        rendered = self._embedder.render(
            texts, prompt=self._prompt or None, max_tokens=self._max_tokens
        )
        for document, tokens in zip(block, rendered, strict=True):
            ids.append(tokens)
            values.append(
                [document.id, digest(document.text), self._embedder.truncated > cut, len(tokens)]
            )
            cut = self._embedder.truncated
        vectors = self._embedder.encode_rows(ids, count.part())
        rows = enumerate(zip(values, vectors, strict=True), start=len(self._journal))
        self._journal.add(
            *(
                Row(number, value, vector.astype("<f4").tobytes())
                for number, (value, vector) in rows
            )
        )

    def _with_text(self, documents: Iterable[Document]) -> Iterator[Document]:
        for document in documents:
            if self._embedder.is_empty(document.text):
                self.empty.append(document.id)
            else:
                yield document


def _report_cut(work: BlockEmbedder, facts: Mapping[str, object]) -> None:
    if facts["truncated"]:
        say(
            f"warning: {facts['truncated']:,} of {facts['count']:,} texts were cut to {work.limit}"
            " tokens"
        )


def vector_journal(path: Path, settings: Mapping[str, object], *, ranges: bool = False) -> Journal:
    """Make the journal of a .npy or .jsonl file, with `ranges` also of the file of the ranges that
    it computes.

    A row's value is [id, digest of the text, whether the text was cut, number of tokens], its bytes
    the vector in float32.
    """
    if path.suffix not in FORMATS:
        raise InputError(
            f"{path}: cannot write {path.suffix or 'a name without an ending'!r}; name it"
            f" {' or '.join(FORMATS)}"
        )
    also = [path.with_suffix(".ids")] if path.suffix == ".npy" else []
    return Journal(
        path, settings, also=[*also, path.with_suffix(".ranges.npy")] if ranges else also
    )


def load_ranges(path: Path, size: int) -> np.ndarray:
    """Read the ranges (2, size) of 8-bit vectors that an earlier run wrote."""
    import numpy as np

    try:
        ranges = np.load(path, allow_pickle=False)
        came = (
            f"has {ranges.dtype} {ranges.shape}"
            if isinstance(ranges, np.ndarray)
            else "has several arrays"
        )
    except (OSError, ValueError, EOFError) as error:
        came = f"cannot be read ({describe(error)})"
    if came != f"has float32 {(2, size)}":
        raise InputError(
            f"{path} {came}; expected OUT.ranges.npy of runnel embed for these vectors, float32 (2,"
            f" {size})"
        )
    return np.asarray(ranges)


def finish_vectors(
    journal: Journal, size: int, precision: str = "float32", ranges: np.ndarray | None = None
) -> dict[str, Any]:
    """Make the output files and return what OUT.json says: the settings and counts; missing ranges
    are computed.
    """
    import numpy as np

    from runnel.models.precision import CALIBRATED, quantize

    out = journal.out
    if precision in CALIBRATED and ranges is None:
        ranges = _compute_ranges(journal, size, precision, out.with_suffix(".ranges.npy"))
    cut, tokens = (sum(row.value[place] for row in journal.rows()) for place in (2, 3))
    blocks = (quantize(block, precision, ranges) for block in _vectors(journal, size))
    names = (row.value[0] for row in journal.rows())
    if out.suffix == ".npy":
        with replacing(out.with_suffix(".ids")) as new, new.open("wb") as file:
            file.writelines(name.encode() + b"\n" for name in names)
        _write_array(
            out, len(journal), blocks, quantize(np.empty((0, size), np.float32), precision, ranges)
        )
    else:
        vectors = map(_numbers, itertools.chain.from_iterable(blocks))
        write_jsonl(
            out,
            ({"id": name, "vector": vector} for name, vector in zip(names, vectors, strict=True)),
        )
    return journal.finish(
        {"dimension": size, "count": len(journal), "truncated": cut, "tokens": tokens}
    )


def _vectors(journal: Journal, size: int) -> Iterator[np.ndarray]:
    """Yield the vectors float32 (rows, size), in blocks."""
    import numpy as np

    rows = journal.rows(data=True)
    while block := b"".join(row.data for row in itertools.islice(rows, _VECTORS)):
        yield np.frombuffer(block, dtype="<f4").reshape(-1, size)


def _compute_ranges(journal: Journal, size: int, precision: str, path: Path) -> np.ndarray:
    import numpy as np

    from runnel.models.precision import value_ranges

    if len(journal) < 2:
        raise InputError(
            f"{precision} vectors need the ranges of at least two vectors, got {len(journal)}; give"
            " --ranges"
        )
    of_blocks = [value_ranges(np.concatenate([block, block])) for block in _vectors(journal, size)]
    ranges = value_ranges(np.concatenate(of_blocks))
    with replacing(path) as new, new.open("wb") as file:
        np.save(file, ranges)
    return ranges


def _write_array(path: Path, count: int, blocks: Iterable[np.ndarray], none: np.ndarray) -> None:
    """Write `count` vectors as an array of .npy, block by block; `none` has
    their size and dtype.
    """
    import numpy as np

    kind = none.dtype.newbyteorder("<")
    with replacing(path) as new, new.open("wb") as file:
        header = {"descr": kind.str, "fortran_order": False, "shape": (count, none.shape[1])}
        np.lib.format.write_array_header_1_0(file, header)
        file.writelines(np.ascontiguousarray(block, dtype=kind).tobytes() for block in blocks)


def _numbers(vector: np.ndarray) -> list[float]:
    """Return the numbers of a vector; of float32 the shortest ones that read back equal."""
    return (
        [float(str(number)) for number in vector] if vector.dtype.kind == "f" else vector.tolist()
    )
