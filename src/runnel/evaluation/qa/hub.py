"""Sets from data sets of the hub: their files are downloaded, or taken from the hub's cache, set by set."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from zipfile import BadZipFile, ZipFile

from runnel.errors import ReadError
from runnel.evaluation.qa.sets import SUITES, SetFacts

RELEASED = "MambaRetriever/MambaRetriever"


def suite_of(hub_id: str) -> str | None:
    """Return the suite whose data set has this hub id."""
    return next((name for name, suite in SUITES.items() if suite.hub == hub_id), None)


def hub_ids() -> list[str]:
    """Return the hub ids that are read."""
    return [*(suite.hub for suite in SUITES.values() if suite.hub), RELEASED]


@contextmanager
def fetch_set(facts: SetFacts) -> Iterator[list[Path]]:
    """Return the files of a set of a suite on the hub. Unzipped files are deleted on leaving.

    Raises:
        ReadError: they are neither in the cache nor can they be downloaded, or an archive is damaged or lacks the set.
    """
    suite = SUITES[facts.suite]
    pattern = suite.download.format(task=facts.task, group=facts.task.rpartition("_")[0])
    files = fetch(suite.hub, pattern)
    if files[0].suffix != ".zip":
        yield files
        return
    with TemporaryDirectory(prefix="runnel-") as folder:
        yield [_unzip(files[0], f"{facts.task}.jsonl", Path(folder))]


def fetch(hub_id: str, pattern: str) -> list[Path]:
    """Return the files of a data set of the hub that match a pattern; offline from the cache.

    Raises:
        ReadError: there are none.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        folder = Path(snapshot_download(hub_id, repo_type="dataset", allow_patterns=pattern))
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ReadError(
            f"{pattern} of {hub_id} cannot be fetched from the hub ({reason}); give a folder with its files"
        ) from error
    files = sorted(folder.glob(pattern))
    if not files:
        raise ReadError(f"{hub_id} has no file {pattern} on the hub; give a folder with its files")
    return files


def _unzip(archive: Path, name: str, folder: Path) -> Path:
    try:
        with ZipFile(archive) as opened:
            found = [member for member in opened.infolist() if PurePosixPath(member.filename).name == name]
            if len(found) != 1:
                raise ReadError(f"{archive} has {len(found)} files {name}; expected one")
            with opened.open(found[0]) as source, (folder / name).open("wb") as target:
                shutil.copyfileobj(source, target)
    except (BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise ReadError(f"{archive} is damaged ({error}); delete it, so that it is downloaded again") from error
    return folder / name
