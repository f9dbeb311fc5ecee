"""`runnel serve`: an HTTP server for one model and one index."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from runnel.commands import background
from runnel.commands.display import JsonLogLines, note_compiling, print_json, print_text, say
from runnel.commands.options import DTYPES, Dtype, Json, Model, refuse, refuse_others
from runnel.errors import InputError, needing

_KEY_VARIABLE = "RUNNEL_API_KEY"
_IDLE_MINUTES = 30.0

Background = Annotated[bool, typer.Option("--background", help="Start a process that keeps find, search, rerank, embed warm.")]
Idle = Annotated[
    float | None, typer.Option(min=0.01, metavar="MINUTES", help="End after these minutes without a command.", show_default="30")
]
Stop = Annotated[bool, typer.Option("--stop", help="Stop the background process.")]


def serve(
    context: typer.Context,
    *,
    model: Model = "pocket",
    dtype: Dtype = "auto",
    index: Annotated[str | None, typer.Option("--in", metavar="DIR", help="Index to search (default: the project's).")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 8675,
    api_key_file: Annotated[
        Path | None, typer.Option(help=f"File with one API key per line (also: ${_KEY_VARIABLE}, one key).")
    ] = None,
    allow_host: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Another name of this server.")] = None,
    open_bind: Annotated[bool, typer.Option("--open", help="Serve other machines without an API key.")] = False,
    deadline: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Longest time of a request.")] = 600,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object per request on stderr.")] = False,
    in_background: Background = False,
    idle: Idle = None,
    status: Annotated[bool, typer.Option("--status", help="Show the status of the background process.")] = False,
    stop: Stop = False,
    as_json: Json = False,
) -> int:
    """Serve a model and an index over HTTP, in the shapes of OpenAI, Cohere, Jina and TEI.

    Answers with embeddings, reranking, sentences and documents, until SIGTERM or Ctrl-C; then requests are finished.
    Example: runnel serve --in library

    With --background, start a process that instead keeps models and indexes loaded for find, search, rerank and embed of this
    user's command line.
    """
    if in_background:
        refuse_others(context, "--background", _start)
        return _start(idle, as_json)
    refuse({"--idle": idle}, "needs --background")
    if status or stop:
        refuse_others(context, "--status" if status else "--stop", _show)
        return _show(as_json, end=stop)
    with needing("the server needs FastAPI and uvicorn", "serve"):
        from runnel.server.app import bind, create_app, serve
        from runnel.server.settings import ServerSettings
    settings = ServerSettings(
        model=model, dtype=DTYPES[dtype], index=index, host=host, port=port, api_keys=_keys(api_key_file),
        allowed_hosts=tuple(allow_host or ()), open_bind=open_bind, deadline_s=deadline,
    )  # fmt: skip
    if log_json:
        logging.basicConfig(level=logging.WARNING, handlers=[JsonLogLines()], force=True)
        logging.getLogger("runnel").setLevel(logging.INFO)
    note_compiling()
    if index is None:
        settings = replace(settings, index=_project_index(model))
    with bind(settings) as socket:
        shown, port = f"[{host}]" if ":" in host else host, socket.getsockname()[1]
        say(f"loading {model}")

        def started() -> None:
            url = f"http://{shown}:{port}"
            say(f"serving {model} at {url} (routes: /docs)")
            if as_json:
                print_json({"model": model, "url": url})
                sys.stdout.flush()

        serve(create_app(settings), [socket], started)
    return 0


def _start(idle: float | None, as_json: bool) -> int:
    running = background.status()
    facts = running or background.start(idle or _IDLE_MINUTES)
    said = "is running already" if running else "has started"
    ended = f"it ends after {facts['idle_minutes']:g} minutes without a command"
    print_json(facts) if as_json else print_text(f"background process {facts['pid']} {said}; {ended}")
    return 0


def _show(as_json: bool, end: bool) -> int:
    """Show the status of the background process, or stop it; return the exit code: 1 if there is none."""
    background.expect_private()
    state = background.status()
    if state is not None and end:
        background.stop()
    if as_json:
        print_json(state or {"pid": None})
    elif state is None:
        print_text("there is no background process")
    elif end:
        print_text(f"background process {state['pid']} has stopped")
    else:
        print_text(
            f"background process {state['pid']}, runnel {state['version']}: {'busy' if state['busy'] else 'idle'}, "
            f"{state['commands']:,} commands, at most {state['peak_bytes'] / 1e6:,.0f} MB of memory; "
            f"it ends after {state['idle_minutes']:g} minutes without a command"
        )
    return 1 if state is None else 0


def _project_index(model: str) -> str | None:
    """Return the place of the index of the project that holds the working directory; None if there is none of this model."""
    from runnel.search.project import Project
    from runnel.search.stores import holds_index, open_store

    project = Project.find(Path.cwd())
    if project is None or not holds_index(project.place):
        return None
    if (own := open_store(project.place).settings.model) != model:
        say(f"note: the index of {project.folder} is not searched: its model is {own}, not {model}; give -m {own}")
        return None
    say(f"searching the index of {project.folder}; `runnel index --watch` keeps it up to date")
    return str(project.place)


def _keys(file: Path | None) -> tuple[str, ...]:
    keys = [os.environ[_KEY_VARIABLE]] if os.environ.get(_KEY_VARIABLE) else []
    if file is not None:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        if not any(lines):
            raise InputError(f"{file} holds no API key; write one per line")
        keys += [line for line in lines if line]
    return tuple(keys)
