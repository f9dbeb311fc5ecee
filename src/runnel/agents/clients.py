"""Write this server into the configuration of an agent's program, and take it out again.

Only the server's own entry changes: the text around it keeps its form and its comments. What was
written is parsed and compared before it replaces the file.
"""

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

from runnel.errors import InputError, describe
from runnel.files import replacing

NAME = "runnel"  # of the entry
# The file that a program documents, in the working directory if it is relative, and the key of its
# object with the servers by name.
PROGRAMS = {
    "claude-code": (".mcp.json", "mcpServers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "vscode": (".vscode/mcp.json", "servers"),
    "codex": (f"{os.environ.get('CODEX_HOME') or '~/.codex'}/config.toml", "mcp_servers"),
    "gemini": (".gemini/settings.json", "mcpServers"),
}
_NO_JSON = (
    re.compile(r'"(?:\\.|[^"\\])*"|//[^\r\n]*|/\*.*?\*/', re.DOTALL),  # strings and comments
    re.compile(r'"(?:\\.|[^"\\])*"|,(?=\s*[}\]])'),  # strings and commas before a bracket
)
_KEY = re.compile(r'[\s,]*("(?:\\.|[^"\\])*")\s*:\s*')


def configure(program: str, command: list[str] | None) -> Path:
    """Write the entry of this server, which starts with a command, to the configuration of a
    program, or remove it (None); return the file. Its mode stays, and a link to it.

    Raises:
        InputError: the file is damaged or read-only, or has something else in the place of the
            servers.
    """
    file, key = PROGRAMS[program]
    path = Path(file).expanduser()
    entry: dict[str, object] = (
        {} if command is None else {"command": command[0], "args": command[1:]}
    )
    if entry and program == "vscode":
        entry = {"type": "stdio", **entry}
    is_toml = path.suffix == ".toml"
    load = tomllib.loads if is_toml else _load_json
    try:
        path = path.resolve()
        old = path.read_bytes().decode() if path.exists() else ""
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
        if {key: {}} | load(new) != expected:
            raise ValueError("its form is not known")
    except (ValueError, RuntimeError) as error:  # RuntimeError: a circle of links, deep JSON
        raise InputError(
            f"{path} cannot be changed ({describe(error)}); repair it or move it away; nothing was"
            " written"
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_bytes(new.encode())
        if path.exists():
            partial.chmod(path.stat().st_mode & 0o7777)
    return path


def _changed_toml(text: str, key: str, entry: dict[str, object]) -> str:
    import tomlkit

    document = tomlkit.parse(text)
    if not entry and NAME not in document.get(key, {}):
        return text
    servers: Any = document.setdefault(key, tomlkit.table(is_super_table=True))
    servers.pop(NAME, None)
    if entry:
        servers[NAME] = entry
    return tomlkit.dumps(document)


def _changed_json(text: str, key: str, entry: dict[str, object]) -> str:
    text = text if text.strip() else "{}\n"
    if NAME in _load_json(text).get(key, {}):
        servers = _members(text, _plain(text).index("{"))[key][1]
        begin, _, end = _members(text, servers)[NAME]
        before = text[:begin].rstrip()
        comma = re.match(r"\s*,", text[end:])
        after = text[end + comma.end() :] if comma else text[end:]
        text = (before if comma else before.removesuffix(",")) + after
    if not entry:
        return text
    top = _plain(text).index("{")
    members = _members(text, top)
    if key not in members:
        return _with_first(text, top, "", {key: {NAME: entry}})
    return _with_first(text, members[key][1], "  ", {NAME: entry})


def _load_json(text: str) -> Any:
    return json.loads(_plain(text) if text.strip() else "{}")


def _plain(text: str) -> str:
    """Return JSON with spaces in place of a byte order mark, of comments, and of commas before
    brackets, so that all other characters stay at their places.
    """
    for pattern in _NO_JSON:
        text = pattern.sub(
            lambda found: found[0] if found[0][0] == '"' else re.sub(r"\S", " ", found[0]), text
        )
    return text.replace("\ufeff", " ", 1)


def _members(text: str, start: int) -> dict[str, tuple[int, int, int]]:
    """Return where each member of the object at `start` begins, and its value begins and ends."""
    plain = _plain(text)
    members = {}
    at = start + 1
    while match := _KEY.match(plain, at):
        _, at = json.JSONDecoder().raw_decode(plain, match.end())
        members[json.loads(match[1])] = (match.start(1), match.end(), at)
    return members


def _with_first(text: str, start: int, margin: str, member: dict[str, object]) -> str:
    """Return a text with a new first member in the object at `start`, in lines of its own."""
    lines = json.dumps(member, indent=2, ensure_ascii=False).split("\n")[1:-1]
    end = "," if _members(text, start) else ""
    if text[start + 1] == "}":
        end = "\n" + margin
    block = "".join(f"\n{margin}{line}" for line in lines) + end
    block = block.replace("\n", "\r\n" if "\r\n" in text else "\n")
    return text[: start + 1] + block + text[start + 1 :]
