"""A project's own index, found upwards from every folder below the project as git finds its repository.

.runnel/.gitignore      hides the folder from git
.runnel/project.json    the paths that are indexed, and which files below them
.runnel/files.json      hashes of the files at the last update
.runnel/update.lock     held by the process that brings the index up to date
.runnel/index/          the index
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path, PurePath

from runnel.errors import InputError, StoreError
from runnel.files import write
from runnel.lock import WriterLock
from runnel.search.file_hashes import FileHashes
from runnel.search.index import Changes, Index
from runnel.text.documents.document import Limits
from runnel.text.documents.ocr import Ocr
from runnel.text.folders import Root, Selection

log = logging.getLogger("runnel")
NAME = ".runnel"
_INDEX = "index"
_FORMAT = 1


def index_name(place: str) -> str:
    """Return a short name of the index at a place: the folder of its project, or the last part of the place."""
    path = PurePath(place)
    return path.parent.parent.name if path.parts[-2:] == (NAME, _INDEX) else path.name


@dataclass(frozen=True)
class Project:
    """A folder whose files are indexed in `.runnel`. Use `find`, or `extend` and `save` a new one.

    Attributes:
        folder: the absolute path of the folder that contains `.runnel`.
        paths: files, folders and globs to index, relative to `folder`.
        selection: which files below the folders.
    """

    folder: Path
    paths: tuple[str, ...] = ()
    selection: Selection = field(default_factory=Selection)

    @property
    def place(self) -> Path:
        """The folder of the index."""
        return self.folder / NAME / _INDEX

    @classmethod
    def find(cls, start: Path) -> Project | None:
        """Return the project that holds the folder `start`: the innermost `.runnel` in `folders_of(start)`; None without one.

        Raises:
            StoreError: `.runnel` is not a project's folder, belongs to another user, is damaged, names paths outside of the
                project, or has a link in it.
        """
        folder = next((folder for folder in folders_of(start) if os.path.lexists(folder / NAME)), None)
        return None if folder is None else cls._read(folder)

    @classmethod
    def _read(cls, folder: Path) -> Project:
        place = folder / NAME
        if not place.is_dir():
            raise StoreError(
                f"{place} is not a folder; expected the index of a project. Rename it, or give the place of an index"
            )
        _expect_trusted(folder)
        inside = (os.path.join(at, name) for at, folders, files in os.walk(place) for name in (*folders, *files))
        if (link := next(filter(os.path.islink, chain([str(place)], inside)), None)) is not None:
            raise StoreError(f"{link} is a link, so that an update could change an index or a file elsewhere; remove it")
        try:
            stored = json.loads((place / "project.json").read_text(encoding="utf-8"))
            if stored["format"] != _FORMAT:
                raise StoreError(f"{place} has format {stored['format']}, this version of runnel reads {_FORMAT}; upgrade runnel")
            chosen = {name: tuple(map(str, stored[name])) for name in ("paths", "include", "exclude")}
            selection = Selection(chosen["include"], chosen["exclude"], bool(stored["ignore_files"]))
            if outside := [name for name in map(PurePath, chosen["paths"]) if name.anchor or ".." in name.parts]:
                raise ValueError(f"the path {outside[0]} is outside of the project")
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise StoreError(
                f"{place}/project.json is missing or damaged ({reason}); remove {place} and run `runnel index`"
            ) from error
        return cls(folder, chosen["paths"], selection)

    def save(self) -> None:
        """Store the paths and the selection in `.runnel`, which is created, for this user alone, if it does not exist.

        Raises:
            OSError: the folder cannot be written.
        """
        place = self.folder / NAME
        place.mkdir(mode=0o700, exist_ok=True)  # it will hold texts
        write(place / ".gitignore", "*\n")
        facts = {"format": _FORMAT, "paths": self.paths, **asdict(self.selection)}
        write(place / "project.json", json.dumps(facts, indent=2) + "\n")

    def extend(self, paths: Iterable[str], selection: Selection | None = None) -> Project:
        """Return the project with more paths; without any, its whole folder is indexed.

        Args:
            paths: relative to the working directory.
            selection: replaces the stored one.

        Raises:
            InputError: a path does not exist, or is outside of the project.
        """
        new = [self._inside(path) for path in paths] or ([] if self.paths else ["."])
        return replace(self, paths=tuple(dict.fromkeys([*self.paths, *new])), selection=selection or self.selection)

    def _inside(self, name: str) -> str:
        root = Root.parse(name)
        path = root.path.resolve()
        if not path.is_relative_to(self.folder):
            raise InputError(
                f"{name} is outside of the project {self.folder}; give --to FOLDER for another index, or run `runnel index` in a "
                "folder that holds both"
            )
        return str(path.relative_to(self.folder) / root.pattern)

    def update(
        self,
        index: Index,
        *,
        retry: bool = False,
        keep_missing: bool = False,
        limits: Limits | None = None,
        ocr: Ocr | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Changes:
        """Bring the project's index up to date; other documents than those of its files are deleted.

        Files whose size and times are those of the last update are not read. `changes.failed` has the new failures.

        Args:
            index: opened at `place`.
            retry: try files again that failed before and have not changed.
            keep_missing: keep the documents of a path that is missing or has no files any more, which is then in
                `changes.failed`: it may be a mount point that is not mounted.
            limits, ocr: as for `DocumentReader`.

        Raises:
            StoreBusy: another process is writing.
            StoreError: the index cannot be written.
            InputError: a link has replaced a path, and leads outside of the project.
            OSError: `.runnel` cannot be written.
        """
        lock = WriterLock(self.folder / NAME / "update.lock", self.folder / NAME)
        lock.acquire()
        try:
            index.refresh()
            return self._update(index, retry, keep_missing, limits, ocr, progress)
        finally:
            lock.release()

    def _update(
        self,
        index: Index,
        retry: bool,
        keep_missing: bool,
        limits: Limits | None,
        ocr: Ocr | None,
        progress: Callable[[int], None] | None,
    ) -> Changes:
        hashes = FileHashes(self.folder / NAME / "files.json")
        if retry:
            hashes.failures.clear()
        roots = [self._root(name) for name in self.paths]
        missing = [root for root in roots if not root.exists or (keep_missing and self._is_empty(root))]
        there = [root for root in roots if root not in missing]
        changes = index.add_files(there, selection=self.selection, hashes=hashes, limits=limits, ocr=ocr, progress=progress)
        sources = {name: content.source for name, content in index.store.content_hashes().items()}
        stale = {name: Path(source) for name, source in sources.items() if source not in hashes.current}
        for root in there:
            stale = {name: source for name, source in stale.items() if not root.covers(source)}
        for root in missing:
            ...
        if stale:
            changes.deleted += index.delete(stale).deleted
        hashes.save()
        if changes:
            index.optimize()
        return changes
