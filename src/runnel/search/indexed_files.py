"""The files of an index: bring the index up to date with them, once or after every change.

In: the paths of files, the project whose files they are, if any (`search/project.py`: a folder
with an index of its own), and how to read them. Out: `Changes`.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from runnel.errors import InputError
from runnel.files import signature
from runnel.request import Progress
from runnel.search.file_hashes import FileHashes
from runnel.search.index import Changes, Index
from runnel.search.project import Project
from runnel.text.documents.document import Limits
from runnel.text.documents.ocr import Ocr
from runnel.text.folders import Selection, Through, find_files

Signatures = dict[str, tuple[int, int, int]]  # by file: size, mtime, ctime
_SHARE = 0.05  # the share of the time that looking for changes may take


@dataclass(frozen=True)
class IndexedFiles:
    """Files, folders and globs that are read for an index.

    A `project` has an index of its own, chooses the files to read and the documents to delete
    itself, and remembers which files have not changed. Of the fields, `update` then uses only
    `limits`, `ocr` and whether there are `hashes`; `look` uses `paths` and `selection`, which
    `for_project` takes from the project.
    """

    paths: Sequence[str | Path]
    selection: Selection
    limits: Limits | None = None
    ocr: Ocr | None = None
    prune: bool = True  # whether to delete documents of removed files
    # while the files are watched: what the last update found, so that files that have not changed
    # since are not read; None: they are not watched
    hashes: FileHashes | None = None
    project: Project | None = None  # whose index is updated; None: an index of no project

    def for_project(self, project: Project) -> Self:
        """Return the files of a project, to be read in the same way."""
        files = [project.folder / path for path in project.paths]
        return replace(self, paths=files, selection=project.selection, project=project)

    def update(
        self,
        index: Index,
        progress: Progress | None = None,
        through: Through = iter,
    ) -> Changes:
        """Read new and changed files into the index, and delete documents of removed files.

        Files that failed before are read again. See `Index.add_files` and `Project.update`. While a
        project is watched, documents of missing paths stay: they may be back in a moment.

        Args:
            through: passes the files on, one by one, such as a progress bar that counts them.
        """
        if self.project is not None:
            return self.project.update(
                index,
                retry=True,  # files that failed before
                keep_missing=self.hashes is not None,
                limits=self.limits,
                ocr=self.ocr,
                progress=progress,
                through=through,
            )
        if self.hashes is not None:
            self.hashes.failures.clear()  # to read them again
        return index.add_files(
            self.paths,
            selection=self.selection,
            hashes=self.hashes,
            prune=self.prune,
            limits=self.limits,
            ocr=self.ocr,
            progress=progress,
            through=through,
        )

    def look(self) -> Signatures:
        """Return the signatures of all files that can be read: their sizes and times, which also
        show changes on network drives and in containers.
        """
        looks: Signatures = {}
        for path in self.paths:
            with suppress(InputError):  # a named path was removed
                for file in find_files([path], self.selection, on_error=lambda error: None):
                    with suppress(OSError):  # removed meanwhile
                        looks[str(file)] = signature(file)
        return looks


def watch(
    update: Callable[[], bool], look: Callable[[], Signatures], *, interval_s: float = 1.0
) -> None:
    """Call `update` at first, and after every change once the files have been the same for
    `interval_s`; never returns. `commands/index.py` calls it.

    Args:
        update: brings the index up to date, and returns whether it could; if not, it is called
            again after the interval.
        look: returns the signatures of the files, as `IndexedFiles.look`.
        interval_s: grows if a look takes more than `_SHARE` of it.
    """
    before = look()
    indexed = None
    while True:
        start = time.monotonic()
        now = look()
        pause = max(interval_s, (time.monotonic() - start) / _SHARE)
        has_settled = now == before
        if has_settled and now != indexed and update():
            indexed = now  # a file that changes during the update will differ from it
        before = now
        time.sleep(pause)
