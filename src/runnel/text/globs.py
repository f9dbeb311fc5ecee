"""Globs with the rules of .gitignore: `*.md`, `/docs/**/*.txt`, `build/`, `!keep.md`.

A glob without a slash, except at its end, is compared with names at any depth, another one with paths below the folder that
the glob belongs to. The regular expressions are our own because those of pathspec 1.1 disagree with git about `!*` followed by
`build/` and about classes such as `[[:alpha:]]`, and take a minute to compare `*a*a*a*a*a*ab` with a name of 100 letters.
Differs from git, which compares bytes: `?` and `[...]` stand for a character.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_MAGIC = re.compile(r"[*?\[]")
_CLASS = re.compile(r"\[[!^]?(?>\[:\w*:\]|\\.|[^\\])(?>\[:\w*:\]|\\.|[^]\\])*\]", re.DOTALL)
_ITEM = re.compile(r"\[:(\w*):\]|(\\.|[^\\])(?:-(\\.|[^\\]))?", re.DOTALL)
_NAMED = {
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "alnum": "a-zA-Z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "space": r"\s",
    "blank": r"\ \t",
    "xdigit": "0-9a-fA-F",
    "punct": "!-/:-@\\[-`{-~",
    "print": r"\ -~",
    "graph": "!-~",
    "cntrl": r"\x00-\x1f\x7f",
}


@dataclass(frozen=True, slots=True)
class Glob:
    """A line of a .gitignore file."""

    regex: re.Pattern[str]  # of a name, or of a path below the folder that the glob belongs to
    negated: bool  # a match takes back an earlier one
    of_names: bool
    only_folders: bool

    def matches(self, path: str, *, folder: bool) -> bool:
        """Return whether this very path matches, with "/" between its names; the folders above it are not looked at."""
        if self.only_folders and not folder:
            return False
        return self.regex.fullmatch(path.rpartition("/")[2] if self.of_names else path) is not None


def parse(line: str) -> Glob | None:
    """Return the glob of a line; None for a comment, an empty line, and a glob that matches nothing, such as `[a`."""
    if line.startswith("#"):
        return None
    negated = line.startswith("!")
    text = _trimmed(line)[negated:]
    only_folders = text.endswith("/")
    text = text[:-1] if only_folders else text
    of_names = "/" not in text
    regex = _regex(text.removeprefix("/"), of_names) if text else None
    return None if regex is None else Glob(regex, negated, of_names, only_folders)


def decide(globs: Sequence[Glob], path: str, *, folder: bool) -> bool | None:
    """Return whether the last glob that matches `path` is not negated; None if no glob matches."""
    return next((not glob.negated for glob in reversed(globs) if glob.matches(path, folder=folder)), None)


def fixed_part(path: str) -> tuple[str, str]:
    """Split a path before its first name with `*`, `?` or `[`; ("", path) if this is the first name."""
    names = path.split("/")
    first = next((number for number, name in enumerate(names) if _MAGIC.search(name)), len(names))
    return "/".join(names[:first]) or ("/" if path.startswith("/") else ""), "/".join(names[first:])


def _trimmed(line: str) -> str:
    """Drop spaces at the end of a line, unless a backslash precedes them."""
    core = line.rstrip(" ")
    escaped = (len(core) - len(core.rstrip("\\"))) % 2 == 1
    return line[: len(core) + 1] if escaped else core


@lru_cache(maxsize=4096)
def _regex(text: str, of_names: bool) -> re.Pattern[str] | None:
    """Translate a name or a path; None if it matches nothing."""
    names = text.split("/")
    parts: list[str] = []
    for number, name in enumerate(names, start=1):
        last = number == len(names)
        if name == "**" and not of_names:
            if last or not parts or parts[-1] != "(?:.*/)?":
                parts.append(".*" if last else "(?:.*/)?")
            continue
        part = _name_regex(name)
        if part is None or not name:
            return None
        parts.append(part if last else part + "/")
    return re.compile("".join(parts), re.DOTALL)


def _name_regex(name: str) -> str | None:
    """Translate one name. Between two stars the first match is enough, so nothing is tried twice: hence the atomic groups."""
    pieces, at = [""], 0
    while at < len(name):
        c = name[at]
        found = _CLASS.match(name, at) if c == "[" else None
        if c == "*":
            pieces.append("")
            at = len(name) - len(name[at:].lstrip("*"))
        elif c == "?":
            pieces[-1] += "[^/]"
            at += 1
        elif found is not None:
            inside = _class_regex(found[0][1:-1])
            if inside is None:
                return None
            pieces[-1] += inside
            at = found.end()
        elif c == "[" or name[at:] == "\\":
            return None
        else:
            escaped = c == "\\"
            pieces[-1] += re.escape(name[at + escaped])
            at += 1 + escaped
    first, *others = pieces
    return first + "".join(f"(?>[^/]*?{piece})" for piece in others[:-1]) + "".join(f"[^/]*{piece}" for piece in others[-1:])


def _class_regex(inside: str) -> str | None:
    """Translate what is between brackets; None for an unknown name such as `[:word:]`."""
    negated = inside[:1] in ("!", "^")
    items = ""
    for name, first, last in _ITEM.findall(inside[negated:]):
        if name or not first:
            if name not in _NAMED:
                return None
            items += _NAMED[name]
        elif not last or first[-1] > last[-1]:  # of [z-a] git compares z
            items += _in_class(first)
        else:
            items += f"{_in_class(first)}-{_in_class(last)}"
    return f"[^/{items}]" if negated else f"(?!/)[{items}]"


def _in_class(character: str) -> str:
    return "\\" + character[-1] if not character[-1].isalnum() and character[-1].isascii() else character[-1]
