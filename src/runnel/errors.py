"""Every error that runnel raises on purpose. A message says what is wrong, what was expected and
what to do.

    Exception
    └── RunnelError
        ├── InputError (also ValueError)
        │   └── ReadError
        │       ├── UnsupportedKind
        │       └── ScannedPdf
        ├── CheckpointError (also ValueError)
        ├── StoreError
        │   └── StoreBusy
        ├── EndpointError
        ├── StateError (also ValueError)
        ├── NumericalError (also ArithmeticError)
        ├── MissingDependency (also ImportError)
        ├── BackendUnavailable (also RuntimeError)
        └── Cancelled
"""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Self

from runnel.redaction import redact, showable

DISTRIBUTION = "runnel-retrieval"  # its name on the package index


class RunnelError(Exception):
    """Base of all errors raised by runnel."""


class InputError(RunnelError, ValueError):
    """An argument or a text that cannot be used."""


class ReadError(InputError):
    """A file that is missing, unreadable, damaged, encrypted, beyond a limit, binary or
    undecodable.
    """


class UnsupportedKind(ReadError):
    """A file of a kind that runnel does not read: binary, an image, an archive, an old office
    format.
    """


class ScannedPdf(ReadError):
    """A PDF whose pages are pictures without text. `pages`: their numbers, from 1."""

    def __init__(self, message: str, pages: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.pages = tuple(pages)


class CheckpointError(RunnelError, ValueError):
    """A model folder that is foreign, incomplete, damaged or of an unknown kind."""


class StoreError(RunnelError):
    """An index that is missing, of another model or format, or damaged; a link or a foreign file in
    place of one of runnel's.
    """


class StoreBusy(StoreError):
    """An index or unfinished work that another process is using; retry later."""


class EndpointError(RunnelError):
    """A language model's endpoint that cannot be reached, refuses a request or does not answer as
    expected.
    """


class StateError(RunnelError, ValueError):
    """A state that does not belong to this model, or is damaged."""


class NumericalError(RunnelError, ArithmeticError):
    """NaN or infinity where a number is needed."""

    @classmethod
    def while_reading(cls, where: str, stored: str = "") -> Self:
        """Return the error for a result, with what may be the cause.

        Args:
            where: the result, such as "the hidden vectors at token 7".
            stored: what it was computed from besides the input, such as "the saved stream".
        """
        causes = f"{stored} is damaged, or a" if stored else "a"
        return cls(
            f"NaN or infinity in {where}; if it comes back each time, {causes} number is too large"
            ' for this dtype (try dtype="float32"); if it comes only sometimes, report it with'
            " what `runnel doctor` prints"
        )


class MissingDependency(RunnelError, ImportError):
    """An optional package is needed for this call; the message has the install command."""


class BackendUnavailable(RunnelError, RuntimeError):
    """The requested device or kernel is not available."""


class Cancelled(RunnelError):
    """The request was cancelled before it finished."""


@contextmanager
def errors_as(
    ours: type[RunnelError], problem: str, *kinds: type[Exception], advice: str
) -> Iterator[None]:
    """Turn errors of other libraries into one of ours, which names the problem, the error, and what
    to do; ours pass.
    """
    try:
        yield
    except RunnelError:
        raise
    except kinds as error:
        raise ours(redact(f"{problem} ({_in_one_line(error)}); {advice}")) from showable(error)


def needing(what: str, extra: str) -> AbstractContextManager[None]:
    """Turn the error of a failed import into a MissingDependency.

    Args:
        what: what needs which package, such as "plots need matplotlib".
        extra: the extra of runnel that installs it.
    """
    return errors_as(MissingDependency, what, ImportError, advice=f"run `{install_command(extra)}`")


@contextmanager
def damage_in(
    name: object, *kinds: type[Exception], advice: str = "download it again or repair it"
) -> Iterator[None]:
    """Turn an error of a library that reads the file `name`, or a part of it, into a ReadError."""
    try:
        yield
    except kinds as error:
        if isinstance(error, RunnelError):
            raise
        if isinstance(error, OSError) and error.errno:
            raise ReadError(f"{name} cannot be read: {error.strerror}; {advice}") from error
        raise ReadError(f"{name} is damaged or incomplete ({describe(error)}); {advice}") from error


def install_command(extra: str) -> str:
    """Return the command that installs an extra: from the package index, or where this package is a
    clone, from there.
    """
    clone = Path(__file__).parents[2]
    if (clone / "pyproject.toml").is_file():
        return f'cd {shlex.quote(str(clone))} && pip install -e ".[{extra}]"'
    return f'pip install "{DISTRIBUTION}[{extra}]"'


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: "1 document", "2,000 queries"."""
    plural = f"{noun.removesuffix('y')}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def describe(error: Exception) -> str:
    """Return an error in one line, without the passwords and keys that its text may have."""
    return redact(_in_one_line(error))


def _in_one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())
