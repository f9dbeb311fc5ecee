"""Find the files below folders, as git and ripgrep do: rules of .gitignore files are obeyed, hidden
names are skipped. In this order: globs (`Glob`), what to read (`Selection`, `Root`), and the walk
through folders (`find_files`).

A file that is named is always read, and a folder that is named is always walked, even if a rule
ignores it.

A glob without a slash, except at its end, is compared with names at any depth, another one with
paths below the folder that the glob belongs to. The regular expressions are our own. Those of
pathspec 1.1 disagree with git about `!*` followed by `build/` and about classes such as
`[[:alpha:]]`, and take a minute to compare `*a*a*a*a*a*ab` with a name of 100 letters. Here `?` and
`[...]` stand for a character; in git, which compares bytes, for a byte.
"""

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from runnel.errors import InputError, ReadError
from runnel.files import near_names

# "excludesFile = ~/.ignored", in git's configuration
_USER_FILE = re.compile(r'^[ \t]*excludesfile[ \t]*=[ \t]*"?([^"\n]*[^"\s])', re.I | re.M)
_MAGIC = re.compile(r"[*?\[]")  # what makes a name a glob
# "[a-z]", "[!0-9]", "[[:alpha:]_]"
_CLASS = re.compile(r"\[[!^]?(?>\[:\w*:\]|\\.|[^\\])(?>\[:\w*:\]|\\.|[^]\\])*\]", re.DOTALL)
# of a class such as "[[:alpha:]0-9_]": the name "alpha"; "0" and "9"; "_" and ""
_ITEM = re.compile(r"\[:(\w*):\]|(\\.|[^\\])(?:-(\\.|[^\\]))?", re.DOTALL)
# by the name of a POSIX class, its characters in a class of a regular expression
_NAMED = {
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "alnum": "a-zA-Z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "xdigit": "0-9a-fA-F",
    "space": r"\s",
    "blank": r"\ \t",
    "punct": "!-/:-@\\[-`{-~",
    "print": r"\ -~",
    "graph": "!-~",
    "cntrl": r"\x00-\x1f\x7f",
}


@dataclass(frozen=True, slots=True)
class Glob:
    """A line of a .gitignore file."""

    # matches a name, or a path below the folder that the glob belongs to
    regex: re.Pattern[str]
    negated: bool  # "!*.md": a path that matches is not ignored, whatever earlier globs say
    of_names: bool  # "*.md": compared with names at any depth, not with paths
    only_folders: bool  # "build/"

    def matches(self, path: str, *, folder: bool) -> bool:
        """Return whether the path itself matches, with "/" between its names; the folders above it
        are not compared.
        """
        if self.only_folders and not folder:
            return False
        return self.regex.fullmatch(path.rpartition("/")[2] if self.of_names else path) is not None


def parse(line: str) -> Glob | None:
    """Return the glob of a line; None for a comment, an empty line, and a glob that matches
    nothing, such as `[a`.
    """
    if line.startswith("#"):
        return None
    negated = line.startswith("!")
    core = line.rstrip(" ")
    escaped = (len(core) - len(core.rstrip("\\"))) % 2  # a backslash keeps one space at the end
    text = line[negated : len(core) + escaped]
    only_folders = text.endswith("/")
    text = text[:-1] if only_folders else text
    of_names = "/" not in text
    regex = _regex(text.removeprefix("/"), of_names) if text else None
    return None if regex is None else Glob(regex, negated, of_names, only_folders)


def decide(globs: Sequence[Glob], path: str, *, folder: bool) -> bool | None:
    """Return whether the last glob that matches `path` is not negated; None if no glob matches."""
    return next(
        (not glob.negated for glob in reversed(globs) if glob.matches(path, folder=folder)), None
    )


def fixed_part(path: str) -> tuple[str, str]:
    """Split a path before its first name with `*`, `?` or `[`; ("", path) if this is the first
    name.
    """
    names = path.split("/")
    first = next((number for number, name in enumerate(names) if _MAGIC.search(name)), len(names))
    return "/".join(names[:first]) or ("/" if path.startswith("/") else ""), "/".join(names[first:])


@lru_cache(maxsize=4096)
def _regex(text: str, of_names: bool) -> re.Pattern[str] | None:
    r"""Translate a glob: "a/**/*.md" is a/(?:.*/)?[^/]*\.md. None: it can match nothing."""
    names = text.split("/")
    patterns: list[str] = []
    for number, name in enumerate(names, start=1):
        last = number == len(names)
        if name == "**" and not of_names:
            if last or not patterns or patterns[-1] != "(?:.*/)?":
                patterns.append(".*" if last else "(?:.*/)?")
            continue
        part = _name_regex(name)
        if part is None or not name:
            return None
        patterns.append(part if last else part + "/")
    return re.compile("".join(patterns), re.DOTALL)


def _name_regex(name: str) -> str | None:
    r"""Translate a glob of one name: "a*.md" is a[^/]*\.md. None: it can match nothing.

    For the text between two stars the first match is enough, so atomic groups keep the regular
    expression from trying others: "a*b*c" is a(?>[^/]*?b)[^/]*c.
    """
    pieces = [""]  # the parts between stars
    at = 0
    while at < len(name):
        character = name[at]
        if character == "*":
            pieces.append("")
            at = len(name) - len(name[at:].lstrip("*"))
        elif character == "?":
            pieces[-1] += "[^/]"
            at += 1
        elif character == "[":
            brackets = _CLASS.match(name, at)
            inside = _class_regex(brackets[0][1:-1]) if brackets else None
            if brackets is None or inside is None:
                return None
            pieces[-1] += inside
            at = brackets.end()
        elif name[at:] == "\\":
            return None
        else:
            escaped = character == "\\"
            pieces[-1] += re.escape(name[at + escaped])
            at += 1 + escaped
    if len(pieces) == 1:
        return pieces[0]
    between = "".join(f"(?>[^/]*?{piece})" for piece in pieces[1:-1])
    return f"{pieces[0]}{between}[^/]*{pieces[-1]}"


def _class_regex(inside: str) -> str | None:
    """Translate what is between brackets; None for an unknown name such as `[:word:]`."""
    negated = inside[:1] in ("!", "^")
    items = ""
    for name, first, last in _ITEM.findall(inside[negated:]):
        if name or not first:
            if name not in _NAMED:
                return None
            items += _NAMED[name]
        elif not last or first[-1] > last[-1]:  # git takes [z-a] as [z]
            items += _in_class(first)
        else:
            items += f"{_in_class(first)}-{_in_class(last)}"
    return f"[^/{items}]" if negated else f"(?!/)[{items}]"


def _in_class(character: str) -> str:
    """Return a character of a glob's class, which may be escaped, as it is written in a class of a
    regular expression.
    """
    sign = character[-1]
    return f"\\{sign}" if sign.isascii() and not sign.isalnum() else sign


_INDEX = {"commits.lance", "documents.lance"}  # the folders that every index of runnel has
# Files of rules, as in ripgrep: a later one of a folder, or of a folder above it, takes precedence.
# Those after the first also hold in the repositories inside their folder.
_RULE_FILES = (".gitignore", ".ignore", ".rgignore")
_SHOWN = 3  # names in one message

OnError = Callable[[OSError], None]  # called with an error that names the folder or file
# yields the items of a list; it may show the number of the file that is being read
Through = Callable[[Sequence[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Selection:
    """Which files below folders to read. Globs have the form of lines in .gitignore, relative to
    each named folder.

    Attributes:
        include: globs, one of which a file or a folder above it must match, if there are any.
        exclude: globs that no file and no folder above it may match.
        ignore_files: whether .gitignore files, .git/info/exclude, the user's rules for all git
            repositories (core.excludesFile), .ignore and .rgignore files are obeyed: git's rules in
            a git repository from its top on, elsewhere from the named folder on; .ignore and
            .rgignore files also of all folders above.

    Raises:
        InputError: a glob that is empty, negated or can match nothing.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    ignore_files: bool = True

    def __post_init__(self) -> None:
        for name in ("include", "exclude"):
            for glob in getattr(self, name):
                if glob.startswith("!") or parse(glob) is None:
                    raise InputError(
                        f"{name} has the glob {glob!r}, which is negated or can match nothing; omit"
                        " the !, or use the other option; expected one such as *.md or drafts/"
                    )


EVERYTHING = Selection()


@dataclass(frozen=True)
class Root:
    """A file, a folder, or the paths below a folder that match a glob, `pattern`."""

    path: Path
    pattern: str = ""

    @classmethod
    def parse(cls, name: "str | Path | Root") -> "Root":
        """Return the root that a user names. A name with `*`, `?` or `[` is a glob unless there is
        such a file.
        """
        if isinstance(name, Root):
            return name
        is_path = isinstance(name, str | Path)
        if is_path and os.path.lexists(name):
            return cls(Path(name))
        start, pattern = fixed_part(str(name).replace(os.sep, "/"))
        root = cls(Path(start), pattern)
        if not is_path or root.glob is None or not root.path.is_dir():
            raise InputError(
                f"there is no file or folder {name if is_path else repr(name)}; check the name"
                + (near_names(Path(name)) if is_path and root.glob is None else "")
            )
        return root

    @cached_property
    def glob(self) -> Glob | None:
        return parse(f"/{self.pattern}") if self.pattern else None

    def resolve(self) -> "Root":
        return Root(self.path.resolve(), self.pattern)

    def covers(self, file: Path) -> bool:
        """Return whether a file's path is this root's or below it, and matches the glob."""
        if not file.is_relative_to(self.path):
            return False
        names = file.relative_to(self.path).parts
        if self.glob is None:
            return not self.pattern  # a pattern that can match nothing
        return any(
            self.glob.matches("/".join(names[:count]), folder=count < len(names))
            for count in range(1, len(names) + 1)
        )


class _Rules(NamedTuple):
    """The globs of one file, and the folder that their paths are relative to."""

    folder: str
    globs: tuple[Glob, ...]
    precedence: int = 0  # the place of the file's name in `_RULE_FILES`


class _Folder(NamedTuple):
    shown: Path  # as the user names it
    path: str  # the absolute path
    below: str  # the path below the root, with a slash at the end; "" for the root
    rules: tuple[_Rules, ...]
    # lists of globs: a file in the folder must still match one glob of each list
    pending: tuple[tuple[Glob, ...], ...]


def find_files(
    paths: Iterable[str | Path | Root],
    selection: Selection = EVERYTHING,
    on_error: OnError | None = None,
) -> Iterator[Path]:
    """Yield the files at `paths`, each path once: of a folder first its files, then the files of
    its folders, by name.

    Names in folders that begin with a dot, links to folders, links to nothing and indexes of this
    package are skipped. `on_error` is called with the error of a folder or .gitignore file that
    cannot be read (default: raise it).
    """
    seen: set[str] = set()
    for root in map(Root.parse, paths):
        if root.path.is_dir():
            files = _walk(root, selection, on_error or _raise)
        else:
            files = iter([root.path])
        for file in files:
            name = os.path.abspath(file)
            if name not in seen:
                seen.add(name)
                yield file


def is_index(folder: str | Path) -> bool:
    """Return whether a folder has what an index of this package has at least."""
    return os.path.isdir(folder) and _INDEX <= set(os.listdir(folder))


def other_kinds(files: Sequence[str]) -> str:
    """Return the message about files found in folders that are not text or a document."""
    more = f" and {len(files) - _SHOWN:,} more" if len(files) > _SHOWN else ""
    return f"files of kinds that are not read: {', '.join(files[:_SHOWN])}{more}"


def _raise(error: OSError) -> None:
    raise ReadError(
        f"{error.filename}: {error.strerror}; change its permissions, or exclude it"
    ) from error


def _walk(root: Root, selection: Selection, on_error: OnError) -> Iterator[Path]:
    start = os.path.abspath(root.path)
    above = _rules_above(Path(start), on_error) if selection.ignore_files else ()
    excluded = _parsed(selection.exclude)
    required = ((root.glob,) if root.glob else (), _parsed(selection.include))
    folders = [_Folder(root.path, start, "", above, tuple(filter(None, required)))]
    while folders:
        folder = folders.pop()
        try:
            entries = sorted(os.scandir(folder.path), key=lambda entry: entry.name)
        except OSError as error:
            on_error(error)
            continue
        names = {entry.name for entry in entries}
        if _INDEX <= names:
            if folder.below:
                continue
            raise InputError(
                f"{folder.shown} is an index; name the folder of its documents, or search it:"
                f" runnel search --in {folder.shown}"
            )
        rules = folder.rules
        # A repository inside another one has only its own rules.
        if selection.ignore_files and ".git" in names:
            rules = (*_exclude_file(folder.path, on_error), *_without_git(rules))
        if selection.ignore_files and not names.isdisjoint(_RULE_FILES):
            rules = _with_rules_of(rules, folder.path, on_error)
        inside: list[_Folder] = []
        for entry in entries:
            below = folder.below + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if (
                entry.name.startswith(".")
                or decide(excluded, below, folder=is_folder)
                or _ignored(rules, entry.path, folder=is_folder)
            ):
                continue
            pending = tuple(
                globs for globs in folder.pending if not decide(globs, below, folder=is_folder)
            )
            if is_folder:
                inside.append(
                    _Folder(folder.shown / entry.name, entry.path, below + "/", rules, pending)
                )
            elif not pending and _is_file(entry, on_error):
                yield folder.shown / entry.name
        folders += reversed(inside)


def _is_file(entry: os.DirEntry[str], on_error: OnError) -> bool:
    """Return whether an entry that is no folder is a link to a file, or no link."""
    try:
        return entry.is_file() or not entry.is_symlink()
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):  # these links lead to nothing
            on_error(error)
        return False


def _ignored(rules: Sequence[_Rules], path: str, *, folder: bool) -> bool:
    """Return whether the innermost file with a rule for this path, of the files that take
    precedence, ignores it. The folders above it are not ignored.
    """
    for file in sorted(reversed(rules), key=lambda file: -file.precedence):
        below = path[len(file.folder) :].replace(os.sep, "/").lstrip("/")
        verdict = decide(file.globs, below, folder=folder)
        if verdict is not None:
            return verdict
    return False


def _rules_above(start: Path, on_error: OnError) -> tuple[_Rules, ...]:
    """Return the rules of the folders above `start`, git's only of the folders of its repository;
    none if they ignore `start`.
    """
    folders = (start, *start.parents)
    top = next((folder for folder in folders if (folder / ".git").exists()), start)
    rules: tuple[_Rules, ...] = ()
    for inner, outer in reversed([*pairwise(folders)]):
        if outer == top:
            rules = (*_exclude_file(str(top), on_error), *rules)
        rules = _with_rules_of(rules, str(outer), on_error)
        rules = rules if outer.is_relative_to(top) else _without_git(rules)
        if _ignored(rules, str(inner), folder=True):
            return ()
    return rules


def _with_rules_of(rules: tuple[_Rules, ...], folder: str, on_error: OnError) -> tuple[_Rules, ...]:
    """Return the rules, and the rules of the files in a folder."""
    return rules + tuple(
        file._replace(precedence=precedence)
        for precedence, name in enumerate(_RULE_FILES)
        for file in _read_rules(folder, Path(folder, name), on_error)
    )


def _without_git(rules: tuple[_Rules, ...]) -> tuple[_Rules, ...]:
    return tuple(file for file in rules if file.precedence > 0)


def _exclude_file(top: str, on_error: OnError) -> tuple[_Rules, ...]:
    """Return the user's rules for all repositories, and those of .git/info/exclude, which take
    precedence. In a linked work tree, .git is a file with the place of its git folder.
    """
    git = Path(top, ".git")
    try:
        if git.is_file():
            git = Path(top, git.read_text(encoding="utf-8").removeprefix("gitdir:").strip())
            shared = git / "commondir"
            git = git / shared.read_text(encoding="utf-8").strip() if shared.is_file() else git
    except (OSError, UnicodeDecodeError):
        return ()  # not a work tree of git
    of_user = _read_rules(top, _user_file(), on_error)
    return (*of_user, *_read_rules(top, git / "info" / "exclude", on_error))


def _user_file() -> Path:
    """Return the file of the user's rules: core.excludesFile of git's configuration, which is
    searched for its line as ripgrep does, or git's default.
    """
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config", "git")
    for config in (Path("~/.gitconfig"), folder / "config"):
        with suppress(OSError):
            text = _expanded(config).read_text(encoding="utf-8", errors="surrogateescape")
            if place := _USER_FILE.search(text):
                return _expanded(place[1])
    return _expanded(folder / "ignore")


def _expanded(place: str | Path) -> Path:
    return Path(os.path.expanduser(place))


def _read_rules(folder: str, file: Path, on_error: OnError) -> tuple[_Rules, ...]:
    """Return the rules of a file, if it exists and has some."""
    try:
        if not file.is_file():
            return ()
        text = file.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except OSError as error:
        on_error(error)
        return ()
    globs = _parsed(line.removesuffix("\r") for line in text.split("\n"))
    return (_Rules(folder, globs),) if globs else ()


def _parsed(lines: Iterable[str]) -> tuple[Glob, ...]:
    return tuple(glob for glob in map(parse, lines) if glob is not None)
