"""What mkdocs adds to the pages of docs/ when it builds the site (`make docs`): a hook of
`mkdocs.yml`.

- reference/commands.md: every command with its arguments and options, from the command line itself;
- reference/python.md: the public names, the errors, and all other names that a page imports, from
  their docstrings;
- repository/: the files outside of docs/ that pages link to, so that one relative link works in a
  clone and on the site.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import runnel
from runnel import errors
from runnel.cli import app

ROOT = Path(__file__).parents[1]
COMMANDS, PYTHON = "reference/commands.md", "reference/python.md"
_FENCE = re.compile(r"^(`{3,}).*?^\1`*$", re.M | re.S)
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)#\s]+)")
_NAMED = re.compile(r"^(`{3,}\w+) (\S+)$", re.M)  # ```json pairs.jsonl
_IMPORT = re.compile(r"^from (runnel\S*) import ([\w, ]+)$", re.M)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages and the linked files of the repository."""
    files.append(File.generated(config, COMMANDS, content=commands_page()))
    files.append(File.generated(config, PYTHON, content=python_page()))
    for path in linked_files():
        files.append(File.generated(config, page_of(path), content=file_page(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links that leave docs/ to the pages of `on_files`; show the names of files above
    blocks of their content.
    """
    if page.file.generated_by is None:  # links of generated pages are right
        markdown = relink(markdown, PurePosixPath("docs", page.file.src_uri))
    return _NAMED.sub(r'\1 title="\2"', markdown)


def commands_page() -> str:
    """Return the page of all commands, as Markdown."""
    group: Any = typer.main.get_command(app)  # typer's classes, or click's
    with group.make_context("runnel", [], resilient_parsing=True) as context:
        parts = [
            "# Commands",
            f"{group.help} `runnel COMMAND --help` prints the same as this page.",
        ]
        parts += _commands(group, context)
    return "\n\n".join(parts) + "\n"


def _commands(group: Any, context: Any) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            with command.make_context(name, [], parent=context, resilient_parsing=True) as below:
                yield from _commands(command, below)
        else:
            yield from _command(command, context)


def _command(command: Any, above: Any) -> Iterator[str]:
    with command.make_context(command.name, [], parent=above, resilient_parsing=True) as context:
        yield f"## {context.command_path.removeprefix('runnel ')}"
        yield (
            f"```text\n{context.command_path}"
            f" {' '.join(command.collect_usage_pieces(context))}\n```"
        )
        yield str(command.help)
        records = [
            record
            for one in command.get_params(context)
            if (record := one.get_help_record(context))
        ]
        rows = [
            f"| {_code(option)} | {_escape(text)} |"
            for option, text in records
            if "--help" not in option
        ]
        yield "\n".join(["| argument or option | |", "|---|---|", *rows])


def _code(text: str) -> str:
    """Return text as code in a table."""
    return f"<code>{_escape(text)}</code>"


def _escape(text: str) -> str:
    """Return text that Markdown and HTML show as it is, in one line."""
    return re.sub(r"[^\w\s.,;:=/()-]", lambda found: f"&#{ord(found[0])};", " ".join(text.split()))


def python_page() -> str:
    """Return the page of the Python API: a directive of mkdocstrings for each name."""
    own = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.RunnelError)
    }
    modules = {"runnel.errors": own - {"RunnelError"}}
    for page in sorted((ROOT / "docs").glob("*.md")):
        for module, names in _IMPORT.findall(page.read_text(encoding="utf-8")):
            if module != "runnel":
                modules.setdefault(module, set()).update(names.replace(" ", "").split(","))
    parts = [
        "# Python",
        "What `from runnel import ...` offers, and below it, by module, what else these pages use.",
    ]
    parts += ["## runnel", *(f"::: runnel.{name}" for name in runnel.__all__)]
    for module, names in sorted(modules.items()):
        parts += [f"## {module}", *(f"::: {module}.{name}" for name in sorted(names))]
    return "\n\n".join(parts) + "\n"


def linked_files() -> set[PurePosixPath]:
    """Return the files and folders outside of docs/ that pages, and pages about them, link to, from
    the repository's root.
    """
    waiting = [PurePosixPath("docs", page.name) for page in (ROOT / "docs").glob("*.md")]
    found: set[PurePosixPath] = set()
    while waiting:
        path = waiting.pop()
        for target in _targets(path):
            if target.parts[0] != "docs" and target not in found:
                found.add(target)
                waiting.append(target)
    return found


def _targets(path: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield what a Markdown file links to."""
    if path.suffix == ".md":
        for part in re.split(_FENCE, (ROOT / path).read_text(encoding="utf-8"))[::2]:
            for link in _LINK.findall(part):
                yield _join(path.parent, link)


def _join(folder: PurePosixPath, link: str) -> PurePosixPath:
    return PurePosixPath(os.path.normpath(folder / link))


def page_of(path: PurePosixPath) -> str:
    """Return the source address, in the site, of a path of the repository."""
    if path.parts[0] == "docs":
        return str(PurePosixPath(*path.parts[1:])) if len(path.parts) > 1 else "README.md"
    return str(PurePosixPath("repository", path)) + ("" if path.suffix == ".md" else ".md")


def file_page(path: PurePosixPath) -> str:
    """Return the page of a file, or of all files of a folder.

    Raises:
        FileNotFoundError: a page links to a file that does not exist.
    """
    if path.suffix == ".md":
        return relink((ROOT / path).read_text(encoding="utf-8"), path)
    files = [path]
    if (ROOT / path).is_dir():
        files = [
            path / one.name
            for one in sorted((ROOT / path).iterdir())
            if one.is_file() and one.name != "__init__.py"
        ]
    sections = (
        [f"## {one.name}\n\n{_fenced(one)}" for one in files] if len(files) > 1 else [_fenced(path)]
    )
    return "\n\n".join([f"# {path}", *sections]) + "\n"


def _fenced(path: PurePosixPath) -> str:
    return f"`````{path.suffix[1:]}\n{(ROOT / path).read_text(encoding='utf-8').rstrip()}\n`````"


def relink(markdown: str, path: PurePosixPath) -> str:
    """Return the Markdown of a file of the repository with links that work from its page of the
    site.
    """
    here = PurePosixPath(page_of(path)).parent

    def moved(link: re.Match[str]) -> str:
        return os.path.relpath(page_of(_join(path.parent, link[1])), here)

    return _outside_fences(markdown, lambda text: _LINK.sub(moved, text))


def _outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    """Return Markdown, changed where it is not a block of code."""
    parts = []
    end = 0
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(markdown[end:])])
