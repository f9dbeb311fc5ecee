"""The background process: runs commands of the command line, one after the other, with models and indexes kept between them.

    python -m runnel.daemon MINUTES    exits after so many minutes without a command

`commands/background.py` describes its socket. A command runs in the main thread, because Ctrl-C is a signal, on the standard
streams of the command line that sent it, in its folder and with its environment. A thread waits for the end of that command line,
which interrupts the command.

A command that was interrupted or failed by a bug may leave anything behind: the process then starts itself again.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from runnel import __version__, cli
from runnel.commands import background, indexes
from runnel.commands.display import report_bug, say
from runnel.errors import StoreBusy
from runnel.files import WriterLock, write
from runnel.ops.backend import say_once

_DESCRIPTORS = 5  # standard input, output, error, the folder, and the file that the command line has locked
_AGAIN_S = 0.5
_HELLO_S = 3.0  # a client that sends nothing in this time is not one
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class Order:
    """What a command line sends; `streams` are encoding, errors and whether it is unbuffered, of each."""

    arguments: list[str]
    environment: dict[str, str]
    umask: int
    streams: list[tuple[str, str, bool]]
    descriptors: Sequence[int]


def main() -> None:
    """Run commands until there have been none for the given minutes; ends this process."""
    minutes, environment, mask = sys.argv[1], dict(os.environ), os.umask(0o077)  # commands change all three
    folder = background.folder()
    os.chdir("/")
    signal.signal(signal.SIGINT, _ignore)
    lock = WriterLock(folder / "lock", folder)
    try:
        lock.acquire()
    except StoreBusy:  # another one was started at the same time
        return
    os.ftruncate(2, 0)
    gc.set_threshold(100_000, 50, 50)
    gc.freeze()  # imported modules are never garbage
    indexes.keep_loaded()
    (folder / "socket").unlink(missing_ok=True)  # of a killed process: this one has the lock
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(folder / "socket"))
    sound, _waiting = _work(listener, folder, 60 * float(minutes))  # it is closed by the end of this process
    for name in ("socket", "status"):
        (folder / name).unlink(missing_ok=True)
    lock.release(remove=True)
    if not sound:
        os.umask(mask)
        os.execve(sys.executable, [*background.PROGRAM, minutes], environment)
    os._exit(0)


def _work(listener: socket.socket, folder: Path, idle_s: float) -> tuple[bool, socket.socket | None]:
    """Run commands until this process has to end; return whether it is as good as at its start, and who asked for its end."""
    same = {"source": background.source(), "settings": background.settings()}
    sound, commands, end = True, 0, time.monotonic() + idle_s
    _write_status(folder, idle_s, commands)
    listener.listen()
    while True:
        listener.settimeout(max(0.0, end - time.monotonic()) if sound else 0.0)  # at last only those that wait already
        try:
            connection, _ = listener.accept()
        except (TimeoutError, BlockingIOError):
            return sound, None
        with connection:
            hello = _receive_hello(connection)
            if hello.get("do") == "stop":
                return True, connection.dup()
            if hello.get("do") != "run" or not sound:
                continue
            if not (same.items() <= hello.items() and background.has_same_rights(connection)):
                with suppress(OSError):
                    background.send(connection, {"answer": "different"})
            elif (order := _receive_order(connection)) is not None:
                over = threading.Event()
                watcher = threading.Thread(target=_watch, args=(connection, over), daemon=True)
                code, sound = _run(order, watcher)
                if sound:
                    indexes.release()
                commands, end = commands + 1, time.monotonic() + idle_s
                _write_status(folder, idle_s, commands)
                over.set()
                with suppress(OSError):
                    background.send(connection, {"exit": code})
                    connection.shutdown(socket.SHUT_RDWR)  # ends the watcher, whose signal must not reach the next command
                watcher.join()


def _watch(connection: socket.socket, over: threading.Event) -> None:
    """Wait until either side closes the connection or half of it; interrupt the command if it is not over.

    Python forgets a signal that comes just before a system call that waits, such as the reading of a pipe, until the call ends.
    """
    connection.settimeout(None)
    with suppress(OSError):  # the command line was killed
        connection.recv(1)
    while not over.is_set():
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if cli.interrupted.wait(_AGAIN_S):
            break


def _write_status(folder: Path, idle_s: float, commands: int) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT
    facts = {"pid": os.getpid(), "version": __version__, "idle_minutes": idle_s / 60, "commands": commands}
    with suppress(OSError):  # a full disk
        write(folder / "status", json.dumps(facts | {"peak_bytes": peak}))


def _receive_hello(connection: socket.socket) -> dict[str, Any]:
    """Return the first message of a connection; empty if none comes."""
    connection.settimeout(_HELLO_S)
    with suppress(OSError, ValueError):
        if isinstance(message := background.receive(connection), dict):
            return message
    return {}


def _receive_order(connection: socket.socket) -> Order | None:
    """Ask for the command and receive it; None if it does not come whole."""
    descriptors: list[int] = []
    with suppress(OSError, ValueError, TypeError):
        background.send(connection, {"answer": "ready"})
        _, descriptors, _, _ = socket.recv_fds(connection, 1, _DESCRIPTORS)
        if len(descriptors) == _DESCRIPTORS:
            return Order(**background.receive(connection), descriptors=descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    return None


def _run(order: Order, watcher: threading.Thread) -> tuple[int, bool]:
    """Run a command; return its exit code, and whether this process is as good as before. It is interrupted once at most."""
    code, sound = 130, False
    try:
        with _streams_of(order):
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                watcher.start()
                code, sound = _command(order)
            except KeyboardInterrupt:  # before the command could handle it
                say("interrupted")
            finally:
                signal.signal(signal.SIGINT, _ignore)
    except KeyboardInterrupt:  # at its very end
        sound = False
        signal.signal(signal.SIGINT, _ignore)
    except BaseException as error:
        code, sound = 1, False
        report_bug(error)
    return code, sound


def _command(order: Order) -> tuple[int, bool]:
    """Run `runnel` with these arguments as in a new process; return its exit code, and whether it ended in an ordinary way."""
    os.umask(order.umask)
    for name in os.environ.keys() - order.environment.keys():
        del os.environ[name]
    for name, value in order.environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    sys.argv = ["runnel", *order.arguments]
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    say_once.cache_clear()
    if module := sys.modules.get("typer.rich_utils"):
        importlib.reload(module)  # it reads the environment when it is imported
    for event in (cli.interrupted, cli.bug):
        event.clear()
    with warnings.catch_warnings():  # which also forgets the warnings that were shown once
        code = cli.run()
    return code, not cli.interrupted.is_set() and not cli.bug.is_set()


@contextmanager
def _streams_of(order: Order) -> Iterator[None]:
    """Use the standard streams and the folder of the command line; afterwards, output that could not be written is dropped."""
    *streams, folder, _ = order.descriptors
    kept = [os.dup(number) for number in range(len(streams))]
    try:
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        os.fchdir(folder)
        sys.stdin, sys.stdout, sys.stderr = map(_open, range(len(streams)), order.streams)
        yield
    finally:
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()  # to where this process itself writes
        os.chdir("/")
        for descriptor in (*kept, *order.descriptors):
            os.close(descriptor)


def _open(number: int, settings: tuple[str, str, bool]) -> io.TextIOWrapper:
    """Open a standard stream as Python does. It never closes the descriptor, which is another file in the next command."""
    encoding, errors, unbuffered = settings
    file = open(number, "wb" if number else "rb", 0 if number and unbuffered else -1, closefd=False)
    at_once = number == 2 or file.isatty()
    return io.TextIOWrapper(file, encoding, errors, line_buffering=at_once, write_through=unbuffered)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: no command is running."""


if __name__ == "__main__":
    main()
