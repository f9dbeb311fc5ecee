"""`runnel mcp`: tools for language-model agents."""

import os
import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

import typer

from runnel.agents.clients import configure
from runnel.commands import display, indexes, parameters
from runnel.errors import InputError, needing

Program = Literal["claude-code", "cursor", "vscode", "codex", "gemini"]


def mcp(
    *,
    model: parameters.Model = "pocket",
    index: Annotated[
        str | None,
        typer.Option("--in", metavar="DIR", help="Index to search (default: the project's)."),
    ] = None,
    no_update: parameters.NoUpdate = False,
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
        int, typer.Option(min=2000, help="Characters of one answer, as it is sent.")
    ] = 20_000,
    http: Annotated[
        bool, typer.Option("--http", help="Serve HTTP on this machine, not stdin and stdout.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port for --http; 0: any free one (default: 8676)."),
    ] = None,
    install: Annotated[
        Program | None,
        typer.Option("--install", help="Write the configuration of an agent's program, and exit."),
    ] = None,
    uninstall: Annotated[
        Program | None, typer.Option("--uninstall", help="Take it out again, and exit.")
    ] = None,
    skill: Annotated[
        bool, typer.Option("--skill", help="Print SKILL.md, for agents that use a shell, and exit.")
    ] = False,
    as_json: parameters.Json = False,
) -> int:
    """Serve files and an index to language-model agents by the Model Context Protocol, read-only.

    Answers to their tools search, find, read and verify, on standard output or with --http.
    Example: runnel mcp --in library

    --install writes the configuration with the other options, in the working directory's .mcp.json
    (claude-code), .cursor, .vscode or .gemini, or in ~/.codex; other entries stay as they are.
    """
    if skill:
        display.print_text(
            files("runnel.agents").joinpath("SKILL.md").read_text(encoding="utf-8").rstrip("\n")
        )
        return 0
    parameters.refuse(
        {
            "--port needs --http": port is not None and not http,
            "--json needs --http": as_json and not http,
            "--http has no effect on a configuration": http and (install or uninstall),
            "--no-update has no effect with --in, which is never updated": no_update and index,
            "--uninstall cannot be given with --install": install and uninstall,
        }
    )
    with needing("runnel mcp needs the MCP SDK", "agents"):
        from runnel.agents.documents import AgentSettings
        from runnel.agents.server import create_server, serve_http
        from runnel.agents.tools import Tools
    folders = tuple(roots or [Path()])
    program = install or uninstall
    if program is not None:
        place = index and (index if "://" in index else os.path.abspath(index))
        options = {"--model": model, "--max-characters": str(max_characters), "--in": place}
        command = [
            *(sys.executable, "-m", "runnel", "mcp"),
            *(part for folder in folders for part in ("--root", str(folder.resolve()))),
            *(part for name, value in options.items() if value for part in (name, value)),
            *(["--no-update"] if no_update else []),
        ]
        display.print_text(str(configure(program, command if install else None)))
        return 0
    if not roots and Path.cwd() == Path(Path.cwd().anchor):
        raise InputError(
            f"the working directory is {Path.cwd()}, which holds every file; give --root DIR"
        )
    project = indexes.find_project(folders[0]) if index is None else None
    if project is not None:
        index = str(project.place)
    server = create_server(
        Tools(AgentSettings(folders, index, model, max_characters, None if no_update else project))
    )
    if http:

        def started(url: str) -> None:
            display.say(f"serving agents at {url}")
            if as_json:
                display.print_json({"url": url})
                sys.stdout.flush()

        serve_http(server, 8676 if port is None else port, started)
    else:
        server.run("stdio")  # until the client closes the input
    return 0
