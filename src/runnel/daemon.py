"""The background process: runs commands of the command line, one after the other, with models and indexes kept between them.

    python -m runnel.daemon MINUTES    exits after so many minutes without a command

`runnel serve --background` starts it, `commands/background.py` describes its socket. A command runs in the main thread, because
Ctrl-C is a signal, on the standard streams of the command line that sent it, in its folder and with its environment. Each
connection has a thread, which waits for the end of the other side: then the command is interrupted.

A command that was interrupted or failed by a bug may leave anything behind: the process then starts itself again.
"""

from __future__ import annotations

import gc
import importlib
import io
import logging
import os
import resource
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from queue import Empty, Queue
from types import FrameType
from typing import Any

from runnel import cli
from runnel.commands import background, loading
from runnel.commands.display import report_bug, say
from runnel.errors import StoreBusy
from runnel.lock import WriterLock
from runnel.ops.backend import say_once

_DESCRIPTORS = 4  # standard input, output, error, and the folder
_HELLO_S = 5.0  # a client that sends nothing in this time is not one


@dataclass(frozen=True)
class Order:
    """What a command line sends: `streams` are encoding, errors and whether it is unbuffered, of each."""

    arguments: list[str]
    environment: dict[str, str]
    umask: int
    streams: list[tuple[str, str, bool]]


@dataclass(eq=False)
class ClientCommand:
    """A command of a client. `state` changes under the lock of the desk: "waiting", then "cancelled", or "running" and "over"."""

    connection: socket.socket
    order: Order
    descriptors: Sequence[int]
    state: str = "waiting"


@dataclass(eq=False)
class Desk:
    """What the threads of connections and the main thread share.

    Attributes:
        queue: at most one command; None wakes the main thread.
        taken: a command is running, or a client has been asked to send one.
        closed: no command is accepted any more.
        stopping: connections that wait for the end of the process.
    """

    idle_s: float
    source: list[object] = field(default_factory=background.source)
    settings: dict[str, str] = field(default_factory=background.settings)
    queue: Queue[ClientCommand | None] = field(default_factory=Queue)
    lock: threading.Lock = field(default_factory=threading.Lock)
    taken: bool = False
    closed: bool = False
    stopping: list[socket.socket] = field(default_factory=list)
    commands: int = 0

    def answer(self, hello: Mapping[str, Any]) -> str:
        """Return whether a client may send its command: "ready" (then it alone), "busy" or "different"."""
        if hello["source"] != self.source or hello["settings"] != self.settings:
            return "different"
        with self.lock:
            if self.taken or self.closed:
                return "busy"
            self.taken = True
            return "ready"

    def release(self) -> None:
        """Let the next client send a command."""
        with self.lock:
            self.taken = False

    def stop(self, connection: socket.socket) -> None:
        """Accept no more commands; the connection ends with the process."""
        with self.lock:
            self.closed = True
        self.stopping.append(connection)
        self.queue.put(None)

    def status(self) -> dict[str, object]:
        """Return the facts for `runnel serve --status`."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT
        facts = {"pid": os.getpid(), "version": version("runnel"), "idle_minutes": self.idle_s / 60, "commands": self.commands}
        return facts | {"busy": self.taken, "peak_bytes": peak}


_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


# ---- connections -----------------------------------------------------------------------------------------------------


def _accept(listener: socket.socket, desk: Desk) -> None:
    """Serve each connection in a thread."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_serve, args=(connection, desk), daemon=True).start()


def _serve(connection: socket.socket, desk: Desk) -> None:
    """Answer the first message of a connection; receive its command, and interrupt it when the other side ends."""
    connection.settimeout(_HELLO_S)
    with suppress(OSError, ValueError, KeyError, TypeError):  # it has ended, or is no command line
        hello = background.receive(connection) if background.is_own(connection) else {"do": "leave"}
        if hello["do"] == "status":
            background.send(connection, desk.status())
        elif hello["do"] == "stop":
            return desk.stop(connection)
        elif hello["do"] == "run":
            answer = desk.answer(hello) if background.has_same_rights(connection) else "different"
            if answer != "ready":
                background.send(connection, {"answer": answer})
            elif (command := _receive_command(connection, desk)) is not None:
                desk.queue.put(command)
                return _watch(command, desk)  # the main thread closes the connection
    connection.close()


def _receive_command(connection: socket.socket, desk: Desk) -> ClientCommand | None:
    """Ask for the command and receive it; None, with the desk released, if it does not come whole."""
    descriptors: list[int] = []
    try:
        background.send(connection, {"answer": "ready"})
        _, descriptors, _, _ = socket.recv_fds(connection, 1, _DESCRIPTORS)
        if len(descriptors) == _DESCRIPTORS:
            return ClientCommand(connection, Order(**background.receive(connection)), descriptors)
    except (OSError, ValueError, TypeError):
        pass
    for descriptor in descriptors:
        os.close(descriptor)
    desk.release()
    desk.queue.put(None)  # it may have been the last thing to wait for
    return None


def _watch(command: ClientCommand, desk: Desk) -> None:
    """Wait until the command line closes the connection or half of it; interrupt its command if that is not over."""
    command.connection.settimeout(None)
    with suppress(OSError):  # it was killed
        command.connection.recv(1)
    with desk.lock:
        if command.state == "running":
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        elif command.state == "waiting":
            command.state = "cancelled"


# ---- commands --------------------------------------------------------------------------------------------------------


def _run(command: ClientCommand, desk: Desk) -> bool:
    """Run a command and send its exit code; return whether this process is as good as before."""
    code, sound = 130, True
    try:
        with _streams_of(command):
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                _begin(command, desk)
                code, sound = _command(command.order)
            except KeyboardInterrupt:  # before the command could handle it
                sound = False
                say("interrupted")
            finally:
                _end(command, desk)
    except KeyboardInterrupt:  # at its very end
        sound = False
        _end(command, desk)
    except BaseException as error:
        code, sound = 1, False
        report_bug(error)
    desk.commands += 1
    if sound:
        loading.release()
        desk.release()  # before the command line ends: the next one may follow at once
    with suppress(OSError), command.connection:
        background.send(command.connection, {"exit": code})
        command.connection.shutdown(socket.SHUT_RDWR)  # ends the thread that watches it
    return sound


def _begin(command: ClientCommand, desk: Desk) -> None:
    """Let interrupts come.

    Raises:
        KeyboardInterrupt: one has come already.
    """
    with desk.lock:
        if command.state == "cancelled":
            raise KeyboardInterrupt
        command.state = "running"


def _end(command: ClientCommand, desk: Desk) -> None:
    """Stop interrupts. One that has been sent may still arrive in this function; there is no second one."""
    with desk.lock:
        command.state = "over"
    signal.signal(signal.SIGINT, _ignore)


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
def _streams_of(command: ClientCommand) -> Iterator[None]:
    """Use the standard streams and the folder of the command line; afterwards, output that could not be written is dropped."""
    *streams, folder = command.descriptors
    kept = [os.dup(number) for number in range(len(streams))]
    try:
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        os.fchdir(folder)
        sys.stdin, sys.stdout, sys.stderr = map(_open, range(len(streams)), command.order.streams)
        yield
    finally:
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()  # to where this process itself writes
        os.chdir("/")
        for descriptor in (*kept, *command.descriptors):
            os.close(descriptor)


def _open(number: int, settings: tuple[str, str, bool]) -> io.TextIOWrapper:
    """Open a standard stream as Python does. It never closes the descriptor, which is another file in the next command."""
    encoding, errors, unbuffered = settings
    raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
    if number == 0:
        return io.TextIOWrapper(io.BufferedReader(raw), encoding, errors)
    if unbuffered:  # python -u
        return io.TextIOWrapper(raw, encoding, errors, write_through=True)  # as Python does itself
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=number == 2 or raw.isatty())


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: no command is running."""


# ---- the process -----------------------------------------------------------------------------------------------------


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
    loading.keep_loaded()
    listener, desk = _listen(folder / "socket"), Desk(60 * float(minutes))
    sound = _work(listener, desk)
    (folder / "socket").unlink(missing_ok=True)
    lock.release(remove=True)
    if not sound and not desk.closed:
        os.umask(mask)
        os.execve(sys.executable, [*background.PROGRAM, minutes], environment)
    os._exit(0)


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)  # of a killed process: this one has the lock
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    return listener


def _work(listener: socket.socket, desk: Desk) -> bool:
    """Run commands until the process has to stop; return False if it must not run another one."""
    threading.Thread(target=_accept, args=(listener, desk), daemon=True).start()
    while True:
        try:
            command = desk.queue.get(timeout=desk.idle_s)
        except Empty:
            command = None
            with desk.lock:
                desk.closed = True
        if command is not None and not _run(command, desk):
            return False
        with desk.lock:
            if desk.closed and not desk.taken:
                return True


if __name__ == "__main__":
    main()
