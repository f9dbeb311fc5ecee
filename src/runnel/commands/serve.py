"""`runnel serve`: an HTTP server for one model and one index."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from runnel.commands.display import JsonLogLines, note_compiling, say
from runnel.commands.options import DTYPES, Dtype, Model
from runnel.errors import InputError, MissingDependency

_KEY_VARIABLE = "RUNNEL_API_KEY"


def serve(
    model: Model = "pocket",
    index: Annotated[
        str | None, typer.Option("--in", metavar="DIR", help="Folder or URI of the index to search.", show_default=False)
    ] = None,
    dtype: Dtype = "auto",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 8675,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help=f"File with one API key per line (also: ${_KEY_VARIABLE}, one key).", show_default=False),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another name that clients reach this server by.", show_default=False),
    ] = None,
    open_bind: Annotated[bool, typer.Option("--open", help="Serve other machines without an API key.")] = False,
    deadline: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Longest time of a request.")] = 600,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object per request on stderr.")] = False,
) -> int:
    """Serve MODEL over HTTP: embeddings, reranking, sentences and search, in the shapes of OpenAI, Cohere, Jina and TEI.

    The process runs until SIGTERM or Ctrl-C, finishes its requests and exits.
    """
    try:
        from runnel.server.app import create_app
        from runnel.server.run import bind, serve
        from runnel.server.settings import Settings
    except ModuleNotFoundError as error:
        raise MissingDependency(f'the server needs FastAPI and uvicorn ({error}); pip install "runnel[serve]"') from error
    settings = Settings(
        model=model, dtype=DTYPES[dtype], index=index, host=host, port=port, api_keys=_keys(api_key_file),
        allowed_hosts=tuple(allow_host or ()), open_bind=open_bind, deadline_s=deadline,
    )  # fmt: skip
    if log_json:
        logging.basicConfig(level=logging.WARNING, handlers=[JsonLogLines()], force=True)
        logging.getLogger("runnel").setLevel(logging.INFO)
    note_compiling()
    with bind(settings) as socket:
        shown, port = f"[{host}]" if ":" in host else host, socket.getsockname()[1]
        say(f"loading {model}")
        serve(create_app(settings), [socket], lambda: say(f"serving {model} at http://{shown}:{port} (routes: /docs)"))
    return 0


def _keys(file: Path | None) -> tuple[str, ...]:
    """Return the API keys of a file and of the environment.

    Raises:
        InputError: the file holds none.
        OSError: the file cannot be read.
    """
    keys = [os.environ[_KEY_VARIABLE]] if os.environ.get(_KEY_VARIABLE) else []
    if file is not None:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        if not any(lines):
            raise InputError(f"{file} holds no API key; write one per line")
        keys += [line for line in lines if line]
    return tuple(keys)
