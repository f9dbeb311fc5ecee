"""MTEB tasks, run by the library mteb, which keeps the results of finished tasks in FOLDER/mteb."""

import difflib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from runnel.checks import refuse_when
from runnel.errors import InputError, damage_in, needing
from runnel.files import write_json
from runnel.jobs.progress import notify
from runnel.lab.evaluation.retrieval import System, load_model, recipe_of

_SEARCH = ("Retrieval", "InstructionRetrieval")
_RERANK = ("Reranking", "InstructionReranking")
# the short names of benchmarks that a user may give
_SHORT = {
    "eng-v1": "MTEB(eng, v1)",
    "eng-v2": "MTEB(eng, v2)",
    "multilingual-v2": "MTEB(Multilingual, v2)",
}


def measure(names: Sequence[str], system: System, folder: Path) -> dict[str, Any]:
    """Return the results of tasks and benchmarks with their means, and write them to
    FOLDER/mteb.json.
    """
    tasks = {task.metadata.name: task for name in names for task in find_tasks(name)}
    for name, task in tasks.items():
        _check(name, task, system)
    import mteb
    from mteb.types import PromptType

    model = _model(system, folder)
    options: dict[str, Any] = {
        "cache": mteb.ResultCache(folder / "mteb"),
        "prediction_folder": folder / "mteb" / "predictions",
        "co2_tracker": False,
        "show_progress_bar": False,
    }
    results = []
    for number, (name, task) in enumerate(tasks.items(), start=1):
        notify(f"{name} ({number} of {len(tasks)})")
        with damage_in(
            f"the data of {name}", OSError, advice="mteb reads them from the hub or its cache"
        ):
            # a task of reranking has its own candidates
            if system.candidates is not None and task.metadata.type in _SEARCH:
                task.convert_to_reranking(system.candidates, top_k=system.depth or 100)
            done = mteb.evaluate(model, task, **options).task_results[0]
        result = {
            "task": name,
            "type": task.metadata.type,
            "metric": task.metadata.main_score,
            "score": float(done.get_score()),
        }
        if system.how == "embed":  # whose prompt may depend on the task: see `_model`
            result["prompt"] = model.prompt_of(task.metadata, PromptType.query)
        results.append(result)
        task.unload_data()
    report = {
        "kind": "mteb",
        "model": system.model,
        "as": system.how,
        "results": results,
        "means": means(results),
    }
    write_json(folder / "mteb.json", report)
    return report


def _check(name: str, task: Any, system: System) -> None:
    kind, modalities = task.metadata.type, task.metadata.modalities
    has_candidates = kind in _RERANK or (kind in _SEARCH and system.candidates)
    what = f"{name} ({kind})"
    refuse_when(
        (modalities != ["text"], f"{what} is about {', '.join(modalities)}; runnel reads text"),
        (
            system.how == "rerank" and not has_candidates,
            f"{what} has no candidates; name those of a retrieval task: --run"
            " FOLDER/mteb/predictions",
        ),
        (
            system.how == "index" and kind not in _SEARCH,
            f"{what} is no retrieval task, which an index needs; evaluate it as embed",
        ),
    )


def find_tasks(name: str) -> list[Any]:
    """Return the tasks of a benchmark, or one task."""
    with needing("MTEB needs mteb", "lab"):
        import mteb
    for find in (partial(mteb.get_benchmark, _SHORT.get(name, name)), partial(mteb.get_task, name)):
        try:
            item = find()
        except KeyError:
            continue
        return [item] if hasattr(item, "metadata") else list(item.tasks)
    names = [
        *_SHORT,
        *(benchmark.name for benchmark in mteb.get_benchmarks()),
        *(task.metadata.name for task in mteb.get_tasks()),
    ]
    near = difflib.get_close_matches(name, names, 3) or list(_SHORT)
    raise InputError(f"unknown task {name!r}; did you mean {' or '.join(near)}?")


def means(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the mean of each type of task, the mean over tasks, and the mean over types."""
    types: dict[str, list[float]] = {}
    for result in results:
        types.setdefault(result["type"], []).append(result["score"])
    rows = [
        *((name, len(scores), scores) for name, scores in types.items()),
        ("mean over tasks", len(results), [result["score"] for result in results]),
        ("mean over types", len(results), [sum(scores) / len(scores) for scores in types.values()]),
    ]
    return [
        {"name": name, "tasks": tasks, "score": sum(scores) / len(scores)}
        for name, tasks, scores in rows
    ]


def _model(system: System, folder: Path) -> Any:
    """Return the system as mteb's models are. A query prompt with {instruction} is a template: for
    each task the encoder fills it with mteb's instruction, in place of the model's own prompt.
    """
    from runnel.integrations.mteb import MtebEncoder, MtebIndex, MtebReranker

    limit = system.reading.max_tokens
    if system.how == "rerank":
        return MtebReranker(load_model(system), name=system.model, max_tokens=limit)
    if system.how == "index":
        return MtebIndex(
            load_model(system),
            folder / "mteb" / "indexes",
            name=system.model,
            options=system.search,
        )
    recipe = recipe_of(system.model)
    template = system.prompts.get("query") or (recipe.data.prompt if recipe else None)
    if template is None or "{instruction}" not in template:
        return MtebEncoder(load_model(system), name=system.model, max_tokens=limit)
    others = {key: text for key, text in system.prompts.items() if key != "query"}
    return MtebEncoder(
        load_model(replace(system, prompts=others)),
        name=system.model,
        template=template,
        max_tokens=limit,
    )
