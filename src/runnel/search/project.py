"""A project's own index, found upwards from the folders below the project as git finds its
repository (`folders_of`).

.runnel/.gitignore      hides the folder from git
.runnel/project.json    the paths that are indexed, and which files below them
.runnel/project.json.lock    held by the process that changes them
.runnel/files.json      hashes of the files at the last update
.runnel/update.lock     held by the process that brings the index up to date
.runnel/index/          the index
"""

import json
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path, PurePath
from typing import Self

from runnel.errors import InputError, StoreError, counted, describe
from runnel.files import WriterLock, expect_trusted, listed, write, write_json
from runnel.request import Progress
from runnel.search.file_hashes import FileHashes
from runnel.search.files import leave_out
from runnel.search.index import Changes, Index
from runnel.text.documents.document import Limits
from runnel.text.documents.ocr import Ocr
from runnel.text.folders import Root, Selection, Through, find_files, fixed_part

log = logging.getLogger("runnel")
NAME = ".runnel"
_INDEX = "index"
_FORMAT = 1


def index_name(place: str) -> str:
    """Return a short name of the index at a place: the folder of its project, or the last part of
    the place.
    """
    path = PurePath(place)
    return path.parent.parent.name if path.parts[-2:] == (NAME, _INDEX) else path.name


@dataclass(frozen=True)
class Project:
    """A folder whose files are indexed in `.runnel`, as `project.json` was when it was read. Use
    `find`, or `extend` a new one.
    """

    folder: Path  # the absolute path of the folder that contains `.runnel`
    paths: tuple[str, ...] = ()  # files, folders and globs to index, relative to `folder`
    selection: Selection = field(default_factory=Selection)

    @property
    def place(self) -> Path:
        return self.folder / NAME / _INDEX

    @classmethod
    def find(cls, start: Path) -> Self | None:
        """Return the project that holds the folder `start`: the innermost `.runnel` in
        `folders_of(start)`; None without one.

        Raises:
            StoreError: `.runnel` is not a project's folder, belongs to another user, is damaged,
                names paths outside of the project, or has a link in it.
        """
        folder = next(
            (folder for folder in folders_of(start) if os.path.lexists(folder / NAME)), None
        )
        return None if folder is None else cls._read(folder)

    @classmethod
    def _read(cls, folder: Path) -> Self:
        place = folder / NAME
        expect_trusted(place)
        if link := next((path for path in place.rglob("*") if path.is_symlink()), None):
            raise StoreError(f"{link} is a link, which may lead to files elsewhere; remove it")
        # Another process has just made the folder, or was killed when it had: at most the first
        # file is there, the lock, and the second one in part, "project.json.xxxxxxxx.partial".
        first = (".gitignore", "project.json.")
        if place.is_dir() and all(name.startswith(first) for name in os.listdir(place)):
            return cls(folder)
        try:
            stored = json.loads((place / "project.json").read_text(encoding="utf-8"))
            paths, include, exclude = (
                tuple(map(str, stored[name])) for name in ("paths", "include", "exclude")
            )
            selection = Selection(include, exclude, bool(stored["ignore_files"]))
            names = map(PurePath, paths)
            outside = [str(name) for name in names if name.anchor or ".." in name.parts]
            if stored["format"] != _FORMAT or outside:
                raise ValueError(
                    f"format {stored['format']}, paths outside of the project:"
                    f" {', '.join(outside) or 'none'}"
                )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{place}/project.json cannot be used ({describe(error)}); move {place} away and"
                " run `runnel index`"
            ) from error
        return cls(folder, paths, selection)

    def extend(self, paths: Iterable[str], selection: Selection | None = None) -> Self:
        """Store more paths, relative to the working directory, and return the project with them;
        without any, its whole folder is indexed.

        `.runnel` is created, for this user alone, if it does not exist. Paths that other processes
        store meanwhile stay: each reads what is stored, and changes it, while it holds a lock.

        Args:
            selection: replaces the stored one (default: the stored one stays).

        Raises:
            InputError: a path does not exist, or is outside of the project.
            StoreError: as for `find`.
        """
        roots = [self._expect_inside(path, Root.parse(path).resolve()) for path in paths]
        place = self.folder / NAME
        place.mkdir(mode=0o700, exist_ok=True)  # it will hold texts
        with WriterLock(place / "project.json.lock", place).held(wait=True):
            stored = self._read(self.folder)
            new = [str(root.path.relative_to(self.folder) / root.pattern) for root in roots] or (
                [] if stored.paths else ["."]
            )
            project = replace(
                stored,
                paths=tuple(dict.fromkeys([*stored.paths, *new])),
                selection=selection or stored.selection,
            )
            write(place / ".gitignore", "*\n")
            write_json(
                place / "project.json",
                {"format": _FORMAT, "paths": project.paths, **asdict(project.selection)},
            )
            return project

    def _expect_inside(self, name: str, root: Root) -> Root:
        if not root.path.is_relative_to(self.folder):
            raise InputError(
                f"{name} is outside of the project {self.folder}: it leads to {root.path}; "
                "remove that link, give --to FOLDER for another index, or run `runnel index` in "
                "a folder that holds both"
            )
        return root

    def update(
        self,
        index: Index,
        *,
        retry: bool = False,
        keep_missing: bool = False,
        limits: Limits | None = None,
        ocr: Ocr | None = None,
        progress: Progress | None = None,
        through: Through = iter,
    ) -> Changes:
        """Bring the project's index up to date; other documents than those of its files are
        deleted. The paths are as stored now, perhaps by another process.

        Files whose size and times are those of the last update are not read. `changes.failed` has
        the new failures.

        Args:
            index: opened at `place`.
            retry: try files again that failed before and have not changed.
            keep_missing: keep the documents of a path that is missing or has no files any more,
                which is then in `changes.failed`: it may be a mount point that is not mounted.
            limits, ocr: as for `DocumentReader`.

        Raises:
            StoreError: another process is writing, or the index cannot be written.
            InputError: a link has replaced a path, and leads outside of the project.
        """
        with WriterLock(self.folder / NAME / "update.lock", self.folder / NAME).held():
            project = self._read(self.folder)
            index.refresh()
            hashes = FileHashes(self.folder / NAME / "files.json")
            if retry:
                hashes.failures.clear()
            roots, missing = project._roots(keep_missing)
            changes = index.add_files(
                roots,
                selection=project.selection,
                hashes=hashes,
                limits=limits,
                ocr=ocr,
                progress=progress,
                through=through,
            )
            # documents of files that were not among the roots' files, by their source
            stale: dict[str, list[str]] = {}
            for name, content in index.store.content_hashes().items():
                if content.source not in hashes.current:
                    if not any(root.covers(Path(content.source)) for root in roots):
                        stale.setdefault(content.source, []).append(name)
            for root in missing:
                covered = [source for source in stale if root.covers(Path(source))]
                if covered:
                    documents = sum(len(stale.pop(source)) for source in covered)
                    shown = str(root.path / root.pattern)
                    leave_out(
                        changes.failed,
                        shown,
                        f"{shown} is missing or has no files (is it mounted?); `runnel index`"
                        f" removes its {counted(documents, 'document')}",
                    )
            if stale:
                changes.deleted += index.delete(chain.from_iterable(stale.values())).deleted
            hashes.save()
            if changes:
                index.optimize()
            return changes

    def _roots(self, keep_missing: bool) -> tuple[list[Root], list[Root]]:
        """Return the roots to read, and those to keep as they are: missing ones (logged otherwise)
        and ones without files.
        """
        roots: list[Root] = []
        missing: list[Root] = []
        for name in self.paths:
            try:
                root = Root.parse(self.folder / name).resolve()
            except InputError:
                if keep_missing:
                    start, pattern = fixed_part(name)
                    missing.append(Root(self.folder / start, pattern))
                else:
                    log.warning(
                        "%s is no longer in %s; its documents are removed from the index",
                        name,
                        self.folder,
                    )
                continue
            self._expect_inside(name, root)
            files = find_files([root], self.selection, lambda error: None)
            if keep_missing and next(files, None) is None:
                missing.append(root)
            else:
                roots.append(root)
        return roots, missing


def folders_of(start: Path) -> Iterator[Path]:
    """Yield the folders whose `.runnel` may be the project of `start`: itself, and those above it
    as far as the next boundary.

    A mount point is the last one. The home folder, a folder that all users may write and those of
    RUNNEL_CEILING_DIRECTORIES are yielded only if they are `start`.
    """
    start = start.resolve()
    ceilings = {Path(os.path.expanduser("~")).resolve(), *listed("RUNNEL_CEILING_DIRECTORIES")}
    for folder in (start, *start.parents):
        try:
            ends = folder in ceilings or (
                os.name != "nt" and bool(folder.stat().st_mode & stat.S_IWOTH)
            )
        except OSError:
            return
        if folder == start or not ends:
            yield folder
        if ends or os.path.ismount(folder):
            return
