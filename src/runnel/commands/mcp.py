"""`runnel mcp`: tools for language-model agents."""

import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from runnel.commands.display import print_json, print_text, say
from runnel.commands.indexes import find_project
from runnel.commands.parameters import Json, Model, NoUpdate, refuse
from runnel.errors import InputError, needing
from runnel.jobs.loading import note_compiling


def mcp(
    *,
    model: Model = "pocket",
    index: Annotated[
        str | None,
        typer.Option("--in", metavar="DIR", help="Index to search (default: the project's)."),
    ] = None,
    no_update: NoUpdate = False,
    roots: Annotated[
        list[Path] | None,
        typer.Option(
            "--root",
            exists=True,
            file_okay=False,
            metavar="DIR",
            help="Folder to read files of (default: here).",
        ),
    ] = None,
    max_characters: Annotated[
        int, typer.Option(min=1000, help="Characters of documents in one answer.")
    ] = 20_000,
    http: Annotated[
        bool, typer.Option("--http", help="Serve HTTP on this machine, not stdin and stdout.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port for --http; 0: any free one (default: 8676)."),
    ] = None,
    skill: Annotated[
        bool, typer.Option("--skill", help="Print SKILL.md, for agents that use a shell, and exit.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Serve files and an index to language-model agents by the Model Context Protocol, read-only.

    Answers to their tools search, find, read and verify, on standard output or with --http.
    Example: runnel mcp --in library
    """
    if skill:
        print_text(
            files("runnel.agents").joinpath("SKILL.md").read_text(encoding="utf-8").rstrip("\n")
        )
        return 0
    if not http:
        refuse({"--port": port, "--json": as_json}, "needs --http")
    with needing("runnel mcp needs the MCP SDK", "agents"):
        from runnel.agents.documents import AgentSettings
        from runnel.agents.server import create_server, serve_http, serve_stdio
        from runnel.agents.tools import Tools
    refuse({"--no-update": no_update and index}, "has no effect with --in, which is never updated")
    folders = tuple(roots or [Path()])
    if not roots and Path.cwd() == Path(Path.cwd().anchor):
        raise InputError(
            f"the working directory is {Path.cwd()}, which holds every file; give --root DIR"
        )
    project = find_project(folders[0]) if index is None else None
    note_compiling()
    if project is not None:
        index = str(project.place)
    server = create_server(
        Tools(AgentSettings(folders, index, model, max_characters, None if no_update else project))
    )
    if http:

        def started(url: str) -> None:
            say(f"serving agents at {url}")
            if as_json:
                print_json({"url": url})
                sys.stdout.flush()

        serve_http(server, 8676 if port is None else port, started)
    else:
        serve_stdio(server)
    return 0
