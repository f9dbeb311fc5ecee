"""`runnel info`: the facts of a model and what fits this machine, or what is remembered of files.

`models/describe.py` makes the facts; the functions here put each group of them in words:
{label: lines}.
"""

import textwrap
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from runnel.commands import display, parameters
from runnel.errors import CheckpointError, InputError, RunnelError, counted

_INDENT, _WIDTH = 20, 120  # characters: of the labels, and of a line
# fields of the config that have lines of their own
_OWN_LINES = ("vocab_size", "hidden_size", "num_layers")


def info(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL]",
            help="pocket, minilm-mamba2, pocket-mamba2, a folder, a weights file or a hub id.",
        ),
    ] = "pocket",
    cache: Annotated[
        bool, typer.Option("--cache", help="Show what is remembered of files instead.")
    ] = False,
    empty: Annotated[bool, typer.Option("--empty", help="With --cache: delete it.")] = False,
    as_json: parameters.Json = False,
) -> int:
    """Show what MODEL is and whether it fits this machine, without loading it.

    Prints architecture, sizes, memory per sequence, heads and templates.
    Example: runnel info pocket-mamba2
    """
    if cache:
        parameters.refuse_others(context, "--cache", _cache)
        return _cache(empty, as_json)
    parameters.refuse({"--empty needs --cache": empty})
    from runnel.models.describe import describe_model

    try:
        description = describe_model(model)
    except CheckpointError as error:
        if not _is_index(model):
            raise
        raise InputError(
            f"{model} is an index, not a model; `runnel search QUERY --in {model}` searches it,"
            f" `runnel check --in {model}` verifies it"
        ) from error
    if as_json:
        display.print_json(description)
        return 0
    shown = _model(description) | _parts(description) | _machine(description)
    for label, lines in shown.items():
        for line in lines or ["none"]:
            display.print_text(_line(label, line))
            label = ""
    return 0


def _cache(empty: bool, as_json: bool) -> int:
    """Print the place and the size of the cache of documents; then delete them with `empty`."""
    from runnel.search.document_cache import LIMIT_BYTES, cache_folder, stored_files, trim

    folder = cache_folder()
    files = stored_files(folder)
    count = sum(path.suffix != ".partial" for _, _, path in files)
    size = sum(size for _, size, _ in files)
    if empty:
        trim(folder, -1)
    sizes = f"{_size(size)} of {_size(LIMIT_BYTES)}{', deleted' if empty else ''}"
    display.print_facts(
        as_json,
        {
            "folder": str(folder),
            "documents": count,
            "bytes": size,
            "limit_bytes": LIMIT_BYTES,
            "emptied": empty,
        },
        _line("folder", str(folder)),
        _line("documents", f"{count:,}, {sizes}"),
    )
    return 0


def _is_index(place: str) -> bool:
    from runnel.search.stores import holds_index

    try:
        return holds_index(place)
    except RunnelError:
        return False


def _line(label: str, text: str) -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=label.ljust(_INDENT),
        subsequent_indent="".ljust(_INDENT),
        break_long_words=False,
        break_on_hyphens=False,
    ) or label.ljust(_INDENT)


def _model(description: dict[str, Any]) -> dict[str, list[str]]:
    config = [
        f"{key} {_value(value)}"
        for key, value in description["config"].items()
        if key not in _OWN_LINES and value is not None
    ]
    stored = " and ".join(sorted(description["stored_bytes"]))
    files = list(description["files"])
    named = files[0] if len(files) == 1 else f"{len(files)} files, {files[0]} to {files[-1]}"
    return {
        "model": [description["model"]],
        "architecture": [f"{description['architecture']}: {description['layout']}"],
        **{key: [f"{description[key]:,}"] for key in ("layers", "width", "vocabulary")},
        "config": [", ".join(config)],
        "parameters": [
            f"{description['parameters']:,}, of them {description['embedding_parameters']:,} in the"
            " embedding"
        ],
        "weights": [
            f"{_size(description['file_bytes'])} on disk, {stored}: {named}",
            f"{_size(description['weight_bytes'])} when loaded as {description['dtype']} on"
            f" {description['device']}",
        ],
        "state per sequence": [_state(description)],
        "work per token": list(_work(description)),
    }


def _state(description: dict[str, Any]) -> str:
    if description["recurrent"]:
        layers = ", ".join(
            f"{key} {'x'.join(map(str, shape[1:])) or 1}"
            for key, shape in description["state"].items()
        )
        return f"{_size(description['state_bytes_per_sequence'])}, in each layer {layers}"
    if description["passage_tokens"]:
        return (
            f"none: reads documents in passages of {description['passage_tokens']:,} tokens, a"
            f" short text of up to {description['max_tokens']:,} tokens as one"
        )
    longest = "any length"
    if description["max_tokens"] is not None:
        longest = f"at most {description['max_tokens']:,} tokens"
    return f"none: reads a text only as a whole, {longest}"


def _work(description: dict[str, Any]) -> Iterator[str]:
    """Yield counts of operations, each with what it counts: papers count differently."""
    layers = (
        "linear layers, convolution and recurrence" if description["recurrent"] else "linear layers"
    )
    yield f"{_count(description['flops_per_token'])}FLOP in {layers}, without embedding and LM head"
    if (attention := description["attention"]) is not None:
        yield (
            f"{_count(attention['flops_per_token'])}FLOP more for attention in a text of"
            f" {attention['tokens']:,} tokens"
        )
    yield (
        f"{_count(description['standard_flops_per_token'])}FLOP by the formula of papers, 2 x"
        " parameters (plus attention)"
    )


def _parts(description: dict[str, Any]) -> dict[str, list[str]]:
    if description["problem"] is not None:
        return {"problem": [description["problem"]]}
    tokenizer = description["tokenizer"]
    markers = [f"{which} {_marker(marker)}" for which, marker in description["markers"].items()]
    return {
        "tokenizer": [f"{tokenizer['file'] or tokenizer['kind']}, {tokenizer['tokens']:,} tokens"],
        "markers": [", ".join(markers)],
        "heads": [f"{key}: {_head(head)}" for key, head in description["heads"].items()],
        "templates": [f"{key}: {text}" for key, text in description["templates"].items()],
        "prompts": [f"{key}: {text!r}" for key, text in description["prompts"].items()],
    }


def _head(head: dict[str, Any]) -> str:
    count = f", {head['parameters']:,} parameters" if head["parameters"] else ""
    return head["kind"] + count + (f", scores a text by {head['unit']}" if "unit" in head else "")


def _machine(description: dict[str, Any]) -> dict[str, list[str]]:
    bf16 = "bf16 in hardware" if description["native_bf16"] else "bf16 emulated"
    gpu = description["gpu"]
    free = f"{_size(gpu['memory_free_bytes'])} free: {_fits(gpu['fits'])}" if gpu else ""
    states = description["states_that_fit"]
    longest = counted(description["longest_step_tokens"], "token")
    return {
        "machine": [
            f"{counted(description['cores'], 'core')}, {counted(description['threads'], 'thread')},"
            f" {bf16}"
        ],
        "gpu": [f"{gpu['name']}, {free}" if gpu else "none"],
        "free memory": [f"{_size(description['memory_free_bytes'])}: {_fits(description['fits'])}"],
        **({} if states is None else {"states that fit": [f"{states:,}"]}),
        "longest step": [f"{longest}; {description['step_tokens']:,} unless asked for"],
    }


def _fits(fits: dict[str, bool]) -> str:
    inside = [dtype for dtype, fit in fits.items() if fit]
    return (
        f"it fits as {' and as '.join(inside)}"
        if inside
        else f"it does not fit, not even as {next(iter(fits))}"
    )


def _marker(marker: dict[str, object] | None) -> str:
    if marker is None:
        return "none"
    return f"{marker['id']} ({marker['token']})" if marker["token"] else str(marker["id"])


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _count(count: float) -> str:
    """Return a count with an SI prefix and three digits."""
    for prefix in ("", "k", "M", "G"):
        if count < 1000:
            return f"{count:.3g} {prefix}"
        count /= 1000
    return f"{count:,.3g} T"


def _size(count: float) -> str:
    """Return bytes in the unit that gives a number below 1024."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"
