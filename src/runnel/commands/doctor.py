"""`runnel doctor`: what is installed, which kernels run and why, and what is missing for what use.

`machine`, `_pocket` (which measures the speed of reading) and `extras` make the report; `_lines`
puts it in words.
"""

import importlib.metadata
import os
import platform
import shlex
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel import __version__, ops
from runnel.commands import display, parameters
from runnel.errors import (
    DISTRIBUTION,
    MissingDependency,
    RunnelError,
    StoreError,
    describe,
    install_command,
)
from runnel.hardware import available_memory, cores
from runnel.ops.backend import choose, gpu_name, has_native_bf16, numba_problem
from runnel.search.document_cache import cache_folder

if TYPE_CHECKING:
    from runnel.models.embedder import Embedder

PURPOSES = {
    "recurrent": "models that need torch: recurrent ones, published ones, and all on GPUs",
    "search": "indexes: runnel index, runnel search",
    "serve": "the HTTP server and its page: runnel serve",
    "agents": "tools for agents: runnel mcp",
    "answers": "language models: runnel ask, runnel lab synthesize, runnel lab qa",
    "lab": (
        "training, evaluation and transformers: runnel lab train, mine, adapt, evaluate, compare"
    ),
    "ray": "indexing with many machines: runnel ray",
    "qdrant": "indexes in Qdrant",
    "langchain": "LangChain",
    "llama-index": "LlamaIndex",
    "haystack": "Haystack",
    "gpu": "kernels for NVIDIA GPUs",
}  # by extra, what it is for
_WORDS = 600  # the words of the text that is timed: fewer than pocket reads in one step
_ROUNDS = 3  # the fastest counts


def doctor(as_json: parameters.Json = False) -> int:
    """Check this installation, and whether other users can read what is stored of texts.

    Prints which kernels run and why, how fast pocket is with them, and what is missing for what.
    Example: runnel doctor --device cpu

    Exit code 1 if pocket cannot be loaded or does not work.
    """
    cache = os.environ.get("NUMBA_CACHE_DIR") or str(Path(ops.__file__).parent)
    with display.Meter("measuring pocket"):
        pocket = _pocket()
    report = {
        "machine": machine(),
        "memory_free_bytes": available_memory(),
        "kernels_problem": numba_problem(),
        # the cache of compiled kernels
        "kernel_cache": {"folder": cache, "writable": os.access(cache, os.W_OK)},
        "gpu_problem": _gpu_problem(),
        "open_folders": _open_folders(),
        "pocket": pocket,
        "extras": extras(),
    }
    display.print_facts(
        as_json, report, *(f"{label:<14}{text}".rstrip() for label, text in _lines(report))
    )
    return 1 if pocket["problem"] else 0


def machine() -> dict[str, object]:
    """Return processor, cores, threads, GPU and versions, as JSON values."""
    from runnel.ops.numba_math import count_threads

    return {
        "processor": _processor(),
        "cores": cores(),
        "threads": count_threads(),
        "native_bf16": has_native_bf16(),
        "gpu": gpu_name(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {
            "runnel": __version__,
            "torch": _version("torch"),
            "numba": _version("numba"),
            "transformers": _version("transformers"),
            "llama-cpp-python": _version("llama-cpp-python"),
        },
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _pocket() -> dict[str, Any]:
    """Return tokens per second of pocket, the default model, with kernels and in plain torch, and
    the cosine of both vectors. None: not measured, because kernels cannot run here, or torch is not
    installed.
    """
    from runnel.models.embedder import Embedder

    result: dict[str, Any] = {
        "problem": None,
        "dtype": None,
        "tokens_per_s": None,
        "plain_tokens_per_s": None,
        "cosine": None,
    }
    try:
        # 1. with kernels, if they can run here
        embedder = Embedder.load("pocket")
        backbone = embedder.model.backbone
        result["dtype"] = backbone.dtypes[0]
        vector, speed = _measure(embedder)
        # a backbone of torch without a fast step ran in plain torch
        if not backbone.without_torch and backbone.fast is None:
            return result | {"plain_tokens_per_s": speed}
        result["tokens_per_s"] = speed
        # 2. in plain torch
        model = embedder.model.with_torch()
        model.backbone.fast = None
        plain, result["plain_tokens_per_s"] = _measure(Embedder(model))
        # 3. compare
        result["cosine"] = float(vector @ plain)
        if result["cosine"] < 0.99:
            result["problem"] = (
                f"the kernels' vector differs from plain torch's: cosine {result['cosine']:.3f};"
                " please report it"
            )
    except MissingDependency as error:
        if result["tokens_per_s"] is None:
            result["problem"] = describe(error)
    except (RunnelError, OSError) as error:
        result["problem"] = describe(error)
    return result


def _measure(embedder: "Embedder") -> tuple[Any, int]:
    """Return a text's vector and the tokens per second of the fastest round; the first compiles and
    is not counted.
    """
    sentence = "The river carries sand to the sea and leaves it there. "
    text = sentence * (_WORDS // len(sentence.split()))
    tokens = len(embedder.model.tokenizer.encode(text))
    vector = embedder.encode(text)
    best = 0.0
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        vector = embedder.encode(text)
        best = max(best, tokens / (time.perf_counter() - start))
    return vector, round(best)


def extras() -> dict[str, dict[str, object]]:
    """Return {extra: {"for": its purpose, "missing": requirements that are not installed or too
    old}}; empty if not installed.
    """
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or ()
    except importlib.metadata.PackageNotFoundError:  # a source tree that is only on the path
        return {}
    requirements = [(item, item.marker) for item in map(Requirement, lines)]
    by_extra: dict[str, dict[str, object]] = {}
    for extra, purpose in PURPOSES.items():
        missing = [
            _missing(item)
            for item, marker in requirements
            # packages that are required with the extra, and not without it
            if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})
        ]
        by_extra[extra] = {"for": purpose, "missing": list(filter(None, missing))}
    return by_extra


def _missing(requirement: Any) -> str | None:
    if (installed := _version(requirement.name)) is None:
        return str(requirement.name)
    if requirement.specifier.contains(installed, prereleases=True):
        return None
    return f"{requirement.name}{requirement.specifier} (it is {installed})"


def _gpu_problem() -> str | None:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        build = " (this is a build for CPUs)" if torch.version.cuda is None else ""
        return f"torch sees none{build}"
    try:
        choose("ssd", "gpu", torch.empty(0, device="cuda"))
    except RunnelError as error:
        return describe(error)
    return None


def _open_folders() -> list[str]:
    """Return the folders of stored texts whose modes let other users in: the project's, and the one
    of documents of `find`.
    """
    from runnel.search.project import NAME, Project

    folders = []
    with suppress(RunnelError):  # there is no home folder
        folders.append(cache_folder())
    with suppress(StoreError):  # the commands that use this project say why it cannot be used
        if (project := Project.find(Path.cwd())) is not None:
            folders.append(project.folder / NAME)
    if os.name == "nt":
        return []
    # 0o077: all bits of a mode that are not the owner's
    return [str(path) for path in folders if path.is_dir() and path.stat().st_mode & 0o077]


def _lines(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    machine = report["machine"]
    versions = machine["versions"]
    yield (
        "runnel",
        f"{versions['runnel']}, torch {versions['torch'] or 'not installed'}, Python"
        f" {machine['python']}, {machine['system']}",
    )
    bf16 = "bf16 in hardware"
    if not machine["native_bf16"]:
        bf16 = "no bf16 in hardware: models run in fp32; --dtype int8 is faster"
    yield (
        "processor",
        f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads, {bf16}",
    )
    yield "memory", f"{report['memory_free_bytes'] / 2**30:.1f} GiB free"
    if report["kernels_problem"]:
        yield "kernels", f"plain torch, because {report['kernels_problem']}"
    else:
        yield "kernels", "compiled for this processor"
        cache = report["kernel_cache"]
        advice = (
            " cannot be written, so that every process compiles its kernels; set NUMBA_CACHE_DIR"
            " to a folder of yours"
        )
        yield "kernel cache", cache["folder"] + ("" if cache["writable"] else advice)
    yield "pocket", _pocket_in_words(report["pocket"])
    gpu = machine["gpu"] or "none"
    yield "gpu", gpu if report["gpu_problem"] is None else f"{gpu}: {report['gpu_problem']}"
    for folder in report["open_folders"]:
        yield (
            "texts",
            f"the mode of {folder} lets other users in; to keep them out: chmod 700"
            f" {shlex.quote(folder)}",
        )
    for label, installed in (("installed", True), ("missing", False)):
        for extra, facts in report["extras"].items():
            if installed == (not facts["missing"]):  # the extras of this label
                needs = f"; needs {', '.join(facts['missing'])}: {install_command(extra)}"
                yield label, f"{extra}: {facts['for']}{'' if installed else needs}"
                label = ""  # only the first line of several has it


def _pocket_in_words(pocket: dict[str, Any]) -> str:
    if pocket["problem"]:
        return f"does not work: {pocket['problem']}"
    if pocket["plain_tokens_per_s"] is None:
        return f"works in {pocket['dtype']}: {pocket['tokens_per_s']:,} tokens/s with kernels"
    plain = f"{pocket['plain_tokens_per_s']:,} tokens/s in plain torch"
    if pocket["tokens_per_s"] is None:
        return f"works, {plain}"
    ratio = pocket["tokens_per_s"] / pocket["plain_tokens_per_s"]
    return (
        f"works in {pocket['dtype']}: {pocket['tokens_per_s']:,} tokens/s with kernels, {ratio:.1f}"
        f" times {plain}"
    )
