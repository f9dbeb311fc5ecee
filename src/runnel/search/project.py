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
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePath

from runnel.errors import InputError, StoreError
from runnel.files import write
from runnel.lock import WriterLock
from runnel.search.file_hashes import FileHashes
from runnel.search.index import Changes, Index
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
        """Return the project that holds the folder `start`: the innermost `.runnel` in it or above; None without one.

        Raises:
            StoreError: `.runnel` is not a project's folder, or is damaged.
        """
        start = start.resolve()
        folder = next((folder for folder in (start, *start.parents) if os.path.lexists(folder / NAME)), None)
        return None if folder is None else cls._read(folder)

    @classmethod
    def _read(cls, folder: Path) -> Project:
        place = folder / NAME
        if not place.is_dir():
            raise StoreError(
                f"{place} is not a folder; expected the index of a project. Rename it, or give the place of an index"
            )
        try:
            stored = json.loads((place / "project.json").read_text(encoding="utf-8"))
            if stored["format"] != _FORMAT:
                raise StoreError(f"{place} has format {stored['format']}, this version of runnel reads {_FORMAT}; upgrade runnel")
            chosen = {name: tuple(map(str, stored[name])) for name in ("paths", "include", "exclude")}
            selection = Selection(chosen["include"], chosen["exclude"], bool(stored["ignore_files"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise StoreError(
                f"{place}/project.json is missing or damaged ({reason}); remove {place} and run `runnel index`"
            ) from error
        return cls(folder, chosen["paths"], selection)

    def save(self) -> None:
        """Store the paths and the selection in `.runnel`, which is created if it does not exist.

        Raises:
            OSError: the folder cannot be written.
        """
        place = self.folder / NAME
        place.mkdir(exist_ok=True)
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
        self, index: Index, *, retry: bool = False, ocr: Ocr | None = None, progress: Callable[[int], None] | None = None
    ) -> Changes:
        """Bring the project's index up to date; other documents than those of its files are deleted.

        Files whose size and times are those of the last update are not read. `changes.failed` has the new failures.

        Args:
            index: opened at `place`.
            retry: try files again that failed before and have not changed.
            ocr: reads scanned pages of new and changed PDF files.

        Raises:
            StoreBusy: another process is writing.
            OSError: `.runnel` cannot be written.
        """
        lock = WriterLock(self.folder / NAME / "update.lock", self.folder / NAME)
        lock.acquire()
        try:
            index.refresh()
            return self._update(index, retry, ocr, progress)
        finally:
            lock.release()

    def _update(self, index: Index, retry: bool, ocr: Ocr | None, progress: Callable[[int], None] | None) -> Changes:
        hashes = FileHashes(self.folder / NAME / "files.json")
        if retry:
            hashes.failures.clear()
        roots = self._roots()
        changes = index.add_files(roots, selection=self.selection, hashes=hashes, ocr=ocr, progress=progress)
        sources = {name: content.source for name, content in index.store.content_hashes().items()}
        unseen = {name: Path(source) for name, source in sources.items() if source not in hashes.current}
        if stale := [name for name, source in unseen.items() if not any(root.covers(source) for root in roots)]:
            changes.deleted += index.delete(stale).deleted
        hashes.save()
        if changes:
            index.optimize()
        return changes

    def _roots(self) -> list[Root]:
        """Return the roots of the paths that exist, and log the others."""
        roots = []
        for name in self.paths:
            try:
                roots.append(Root.parse(self.folder / name).resolve())
            except InputError:
                log.warning("%s is no longer in %s; its documents are removed from the index", name, self.folder)
        return roots
