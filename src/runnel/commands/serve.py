"""`runnel serve`: an HTTP server for one model and one index."""

import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from runnel.commands import display, parameters
from runnel.errors import InputError, needing
from runnel.jobs.loading import DTYPES

_KEY_VARIABLE = "RUNNEL_API_KEY"


def serve(
    model: parameters.Model = "pocket",
    dtype: parameters.Dtype = "auto",
    index: Annotated[
        str | None,
        typer.Option("--in", metavar="DIR", help="Index to search (default: the project's)."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")
    ] = 8675,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help=f"File with one API key per line (also: ${_KEY_VARIABLE}, one key)."),
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Another name of this server.")
    ] = None,
    open_bind: Annotated[
        bool, typer.Option("--open", help="Serve other machines without an API key.")
    ] = False,
    deadline: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Longest time of a request.")
    ] = 600,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Log one JSON object per request on stderr.")
    ] = False,
    as_json: parameters.Json = False,
) -> int:
    """Serve a model and an index over HTTP, in the shapes of OpenAI, Cohere, Jina and TEI.

    Answers with embeddings, reranking, sentences and documents, until SIGTERM or Ctrl-C.
    Example: runnel serve --in library
    """
    with needing("the server needs FastAPI and uvicorn", "serve"):
        from runnel.server.app import bind, create_app, serve
        from runnel.server.settings import ServerSettings
    settings = ServerSettings(
        model=model,
        dtype=DTYPES[dtype],
        index=index,
        host=host,
        port=port,
        api_keys=_keys(api_key_file),
        allowed_hosts=tuple(allow_host or ()),
        open_bind=open_bind,
        deadline_s=deadline,
    )
    if log_json:
        logging.basicConfig(level=logging.WARNING, handlers=[display.JsonLogLines()], force=True)
        logging.getLogger("runnel").setLevel(logging.INFO)
    if index is None:
        settings = replace(settings, index=_project_index(model))
    with bind(settings) as socket:
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{socket.getsockname()[1]}"
        display.say(f"loading {model}")

        def started() -> None:
            display.say(f"serving {model} at {url} (routes: /docs)")
            if as_json:
                display.print_json({"model": model, "url": url})
                sys.stdout.flush()

        serve(create_app(settings), [socket], started)
    return 0


def _project_index(model: str) -> str | None:
    """Return the place of the index of the project that holds the working directory; None if there
    is none of this model.
    """
    from runnel.search.project import Project
    from runnel.search.stores import holds_index, open_store

    project = Project.find(Path.cwd())
    if project is None or not holds_index(project.place):
        return None
    if (model_of_index := open_store(project.place).settings.model) != model:
        display.say(
            f"note: the index of {project.folder} is not searched: its model is {model_of_index},"
            f" not {model}; give -m {model_of_index}"
        )
        return None
    display.say(
        f"searching the index of {project.folder}; `runnel index --watch` keeps it up to date"
    )
    return str(project.place)


def _keys(file: Path | None) -> tuple[str, ...]:
    keys = [os.environ[_KEY_VARIABLE]] if os.environ.get(_KEY_VARIABLE) else []
    if file is not None:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        if not any(lines):
            raise InputError(f"{file} holds no API key; write one per line")
        keys += [line for line in lines if line]
    return tuple(keys)
