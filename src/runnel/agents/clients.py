"""Write the entry of runnel's MCP server into the configuration file of an agent's program, and
remove it again (`runnel mcp --install`, `--uninstall`).

Only that entry changes: the rest of the text keeps its form and its comments. So JSON is not parsed
and written again, but changed as text, at the places that `_members` finds. Before the new text
replaces the file, it is parsed and compared with what is expected.
"""

import json
import os
import re
import tomllib
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from runnel.errors import InputError, describe
from runnel.files import replacing

NAME = "runnel"  # the name of the entry
# By program: its configuration file, in the working directory if the path is relative, the key of
# the object that has the servers by name, and what an entry has besides its command.
PROGRAMS: dict[str, tuple[str, str, dict[str, str]]] = {
    "claude-code": (".mcp.json", "mcpServers", {}),
    "cursor": (".cursor/mcp.json", "mcpServers", {}),
    "vscode": (".vscode/mcp.json", "servers", {"type": "stdio"}),
    "codex": (f"{os.environ.get('CODEX_HOME') or '~/.codex'}/config.toml", "mcp_servers", {}),
    "gemini": (".gemini/settings.json", "mcpServers", {}),
}
# whitespace and comments of JSON; atomic, so that a comment ends at its first "*/"
_GAP = r"(?>\s|//[^\r\n]*|/\*.*?\*/)*"
# What these programs allow and JSON does not: comments, and a comma before a closing bracket. The
# pattern also matches strings, so that a "//" inside a string is passed over; `_plain` keeps these.
_NOT_JSON = re.compile(rf'"(?:\\.|[^"\\])*"|//[^\r\n]*|/\*.*?\*/|,(?={_GAP}[}}\]])', re.DOTALL)
_KEY = re.compile(r'[\s,]*("(?:\\.|[^"\\])*")\s*:\s*')
# Strings of many lines in TOML, and what may have three quotation marks without being one.
_STRINGS = re.compile(
    r"""(?P<long>"{3}(?:\\.|[^\\])*?"{3,5}|'{3}.*?'{3,5})"""
    r"""|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|#[^\n]*""",
    re.DOTALL,
)
_COMMA = re.compile(f"{_GAP},", re.DOTALL)  # and the comments before it
# A table of the entry in TOML, with the blank line before it. First the line of its name,
# "[mcp_servers.runnel]" or a sub-table of this; then its lines up to the next line that begins with
# "[". Comments and blank lines after its last line are about what follows, and are left.
_TABLE = re.compile(
    r"^(?:[ \t\r]*\n)?[ \t]*"
    rf"""\[+[ \t]*(["']?)mcp_servers\1[ \t]*\.[ \t]*(["']?){NAME}\2[ \t]*[].].*\n?"""
    r"""(?:(?:[ \t\r]*(?:#.*)?\n)*[ \t]*[^\s[#].*\n?)*""",
    re.MULTILINE,
)


class _Member(NamedTuple):
    """Where a member of a JSON object is in a text: the first characters of its key and of its
    value, and the one after its value.
    """

    key: int
    value: int
    end: int


def configure(program: str, command: list[str] | None) -> Path:
    """Write the entry of runnel's server to the configuration file of a program; return the file.
    The file keeps its permissions, and a symbolic link to it stays a link.

    Args:
        program: one of `PROGRAMS`.
        command: starts the server; None: remove the entry.

    Raises:
        InputError: the file is damaged or read-only, or has something else in the place of the
            servers.
    """
    file, key, more = PROGRAMS[program]
    path = Path(file).expanduser()
    entry: dict[str, object] = (
        {} if command is None else {**more, "command": command[0], "args": command[1:]}
    )
    is_toml = path.suffix == ".toml"
    # floats as they are written: nan differs from itself
    load = partial(tomllib.loads, parse_float=str) if is_toml else _load_json
    try:
        path = path.resolve()
        old = _content(path)
        expected = load(old)
        if not isinstance(expected, dict) or not isinstance(expected.get(key, {}), dict):
            raise ValueError(f"it needs an object {key!r} with the servers by name")
        if not entry and NAME not in expected.get(key, {}):
            return path
        if path.exists() and not path.stat().st_mode & 0o222:
            raise ValueError("it is read-only")
        others = {name: one for name, one in expected.get(key, {}).items() if name != NAME}
        expected[key] = others | ({NAME: entry} if entry else {})
        new = (_changed_toml if is_toml else _changed_json)(old, key, entry)
        # After a removal, a file may lack the object of servers, which `expected` has.
        if ({key: {}} | load(new)) != expected:
            raise ValueError("its form is not known")
    except (ValueError, RuntimeError) as error:  # RuntimeError: a circle of links, deep JSON
        raise InputError(
            f"{path} cannot be changed ({describe(error)}); repair it or move it away; nothing was"
            " written"
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as written:
        written.write_bytes(new.encode())
        if path.exists():
            written.chmod(path.stat().st_mode & 0o7777)
        if _content(path) != old:
            raise InputError(f"{path} has just been changed by another program; repeat the command")
    return path


def _content(path: Path) -> str:
    return path.read_bytes().decode() if path.exists() else ""


def _changed_toml(text: str, key: str, entry: dict[str, object]) -> str:
    """Return a TOML text with this entry in the table `key`; {}: without an entry."""
    import tomlkit

    document = tomlkit.parse(text)
    if NAME in document.get(key, {}):
        # Lines inside strings are neither tables nor their ends: in `plain` they are words.
        plain = _STRINGS.sub(
            lambda found: re.sub(r"[^\r\n]", "x", found[0]) if found["long"] else found[0], text
        )
        edges = [0, *(at for table in _TABLE.finditer(plain) for at in table.span()), len(text)]
        rest = "".join(text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True))
        with suppress(ValueError):  # lines of the entry begin with "[", so tomlkit removes it
            document = tomlkit.parse(rest)
        document.get(key, {}).pop(NAME, None)  # in another form than its own tables
    changed = tomlkit.dumps(document)
    if entry:
        # at the end, after a blank line, which a removal takes with it
        end = "\n" if changed.endswith("\n") else "\n\n"
        appended = f"{changed}{end if changed else ''}{tomlkit.dumps({key: {NAME: entry}})}"
        document.setdefault(key, tomlkit.table(is_super_table=True))[NAME] = entry
        changed = tomlkit.dumps(document)
        with suppress(ValueError):  # the servers are an inline table, which no table can extend
            tomllib.loads(appended)
            changed = appended
    if text.count("\n") == text.count("\r\n") > 0:
        changed = re.sub(r"\r?\n", "\r\n", changed)
    return changed


def _changed_json(text: str, key: str, entry: dict[str, object]) -> str:
    """Return a JSON text with this entry in the object `key`; {}: without an entry.

    An existing entry is cut out first, with one comma: the one after it, or, if it is the last one,
    the one before it. Then the new entry becomes the first of the object. If the text has no object
    `key`, that becomes the first member of the whole. Comments stay.
    """
    text = text if _plain(text).strip() else text + "{}\n"
    if NAME in _load_json(text).get(key, {}):
        servers = _members(text, _plain(text).index("{"))[key].value
        old = _members(text, servers)[NAME]
        before = text[: old.key]
        after = text[old.end :]
        code = _plain(before).rstrip()
        if comma := _COMMA.match(after):
            after = after[: comma.end() - 1] + after[comma.end() :]
        elif code.endswith(","):
            before = before[: len(code) - 1] + before[len(code) :]
        # whether a comment ends `before`: what follows may not get into its line
        commented = len(code) < len(text[: old.key].rstrip())
        text = before + after.lstrip() if commented else before.rstrip() + after
    if not entry:
        return text
    top = _plain(text).index("{")
    members = _members(text, top)
    if key not in members:
        return _with_first(text, top, "", {key: {NAME: entry}})
    return _with_first(text, members[key].value, "  ", {NAME: entry})


def _load_json(text: str) -> Any:
    return json.loads(_plain(text).rstrip() or "{}")


def _plain(text: str) -> str:
    """Return JSON with spaces in place of a byte order mark, of comments, and of commas before
    brackets, so that all other characters stay at their places.
    """
    plain = _NOT_JSON.sub(
        lambda found: found[0] if found[0][0] == '"' else re.sub(r"\S", " ", found[0]), text
    )
    return plain.replace("\ufeff", " ", 1)


def _members(text: str, start: int) -> dict[str, _Member]:
    """Return the members of the object whose "{" is at `start`, by their keys."""
    plain = _plain(text)
    members = {}
    at = start + 1
    while match := _KEY.match(plain, at):
        _, at = json.JSONDecoder().raw_decode(plain, match.end())
        members[json.loads(match[1])] = _Member(match.start(1), match.end(), at)
    return members


def _with_first(text: str, start: int, margin: str, member: dict[str, object]) -> str:
    """Return a text with a new first member in the object whose "{" is at `start`, in lines of its
    own, `margin` and two spaces from the left.
    """
    lines = json.dumps(member, indent=2, ensure_ascii=False).split("\n")[1:-1]
    end = "," if _members(text, start) else ""
    if text[start + 1] == "}":
        end = "\n" + margin
    line_end = "\r\n" if "\r\n" in text else "\n"
    block = "".join(f"\n{margin}{line}" for line in lines) + end
    return text[: start + 1] + block.replace("\n", line_end) + text[start + 1 :]
