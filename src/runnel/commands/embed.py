"""`runnel embed`: a vector for each row of a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from runnel.commands import display, parameters
from runnel.errors import InputError, counted
from runnel.files import file_digest
from runnel.jobs.loading import DTYPES
from runnel.jobs.rows import RowFile, Shard

if TYPE_CHECKING:
    from runnel.models.embedder import Embedder


def embed(
    texts: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="jsonl, csv or tsv (id, text), or txt (a text a line); - is stdin.",
        ),
    ],
    *,
    model: parameters.Model = "pocket",
    dtype: parameters.Dtype = "auto",
    to: Annotated[str, typer.Option(help="OUT.npy (ids go to OUT.ids) or OUT.jsonl.")],
    as_query: Annotated[
        bool,
        typer.Option("--query/--document", help="Which of the model's prompts each text gets."),
    ] = False,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Cut texts to this many tokens, special ones included."),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N", help="Take shard I of N of the file; write OUT-0000I-of-0000N.npy."
        ),
    ] = None,
    pooling: Annotated[
        Literal["cls", "eos", "mean"] | None,
        typer.Option(help="A text's vector: first token's, last's, mean (default: the model's)."),
    ] = None,
    truncate_dim: Annotated[
        int | None,
        typer.Option(min=1, help="Cut vectors to this many numbers, of unit length again."),
    ] = None,
    precision: Annotated[
        Literal["float32", "int8", "uint8", "binary", "ubinary"],
        typer.Option(
            help="Numbers of OUT; int8 and uint8 also write their ranges to OUT.ranges.npy."
        ),
    ] = "float32",
    ranges: Annotated[
        Path | None,
        typer.Option(help="Ranges of int8 and uint8: the OUT.ranges.npy of the documents."),
    ] = None,
    as_json: parameters.Json = False,
) -> int:
    """Embed each text of INPUT. Interrupted work resumes when you repeat the command.

    Writes a vector for each text: OUT.npy, with the ids in OUT.ids, or OUT.jsonl.
    Example: runnel embed texts.jsonl --to vectors.npy
    """
    from runnel.jobs.embedding import embed_file

    # 1. what to embed, and the settings that the vectors depend on: only work with the same
    # settings is resumed
    part = None if shard is None else Shard.parse(shard)
    computes_ranges = _computes_ranges(precision, ranges, alone=part is None and not as_query)
    out = Path(to) if part is None else part.output_path(Path(to))
    source = RowFile(texts, part)
    prompt = "query" if as_query else "document"
    settings: dict[str, object] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "pooling": pooling,
        "truncate_dim": truncate_dim,
        "precision": None if precision == "float32" else precision,
        "ranges": None if ranges is None else file_digest(str(ranges)),
        "shard": str(part or Shard(1, 1)),
        "sha256": source.sha256(),
    }

    def load() -> "Embedder":
        from runnel.models.embedder import Embedder

        embedder = Embedder.load(
            model, dtype=DTYPES[dtype], pooling=pooling, truncate_dim=truncate_dim
        )
        if as_query and not embedder.model.prompts.get("query"):
            display.say(f"note: {model} has no query prompt: --query puts nothing before the texts")
        return embedder

    # 2. vectors
    result = embed_file(
        out,
        settings,
        source,
        load,
        prompt=prompt,
        max_tokens=max_tokens,
        precision=precision,
        ranges=ranges,
        computes_ranges=computes_ranges,
    )
    # 3. what was written
    form = "" if precision == "float32" else f", {precision}"
    display.print_facts(
        as_json,
        {"out": str(out), **result},
        f"{out}: {counted(result['count'], 'vector')} of {result['dimension']} numbers{form}",
    )
    return 0


def _computes_ranges(precision: str, ranges: Path | None, *, alone: bool) -> bool:
    """Return whether ranges of 8-bit vectors, each dimension's smallest and largest number, must be
    computed. They may be if the input has all documents, and no queries: `alone`.
    """
    calibrated = precision in ("int8", "uint8")
    lacking = calibrated and ranges is None and not alone
    if lacking or (ranges is not None and not calibrated):
        needs = "of queries and shards needs" if calibrated else "has no use for"
        raise InputError(
            f"--precision {precision} {needs} --ranges FILE: the OUT.ranges.npy that is written"
            " with int8 or uint8 vectors of documents, or of a sample, without --shard"
        )
    return calibrated and ranges is None
