"""The background process as other processes see it: hand a command over to it, start it, ask for its status, stop it.

A command line that holds the lock of the file "turn" hands its command over in four messages, lines of JSON on a Unix socket:

    command line  {"do": "run", "source": ..., "settings": ...}     what a process cannot change after its start
    background    {"answer": "ready"}, or "different", after which the command runs in the process of the command line
    command line  {"arguments": ..., ...} with file descriptors     its standard streams, its folder and the locked file
    background    {"exit": 0}

The background process (`runnel.daemon`) reads and writes these streams itself, and one connection after the other. The command
line shuts its half of the connection down to interrupt the command. This module imports nothing heavy.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from runnel.errors import BackendUnavailable

COMMANDS = {"find": 2, "search": 2, "rerank": 1, "embed": 1}  # with their exit codes for errors, as in `cli`
PROGRAM = [sys.executable, "-P", "-m", "runnel.daemon"]  # -P: modules are not looked for in the current folder
_ANSWER_S = 3.0  # a process that does not answer in this time hangs: the command runs without it
_START_S = 60.0
# Environment variables that libraries read once, when they are imported, by the beginnings of their names.
_READ_ONCE = (
    *("CUDA_", "DYLD_", "GOMP_", "HF_", "HOME", "HUGGINGFACE_", "KMP_", "LANCE", "LD_", "MKL_"),
    *("NUMBA_", "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH_", "RAYON_", "RUST_", "TOKENIZERS_"),
    *("TORCH", "TRANSFORMERS_", "TRITON_", "XDG_CACHE_HOME"),
)
_RIGHTS = ("Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:", "Seccomp")  # the beginnings of lines of /proc/PID/status


def run(arguments: Sequence[str]) -> int | None:
    """Run a command of the command line in the background process; return its exit code, or None if it must run in this process.

    A note says why, unless there is no background process; that it is busy is said only with --verbose.
    """
    words = list(itertools.dropwhile(lambda word: word in ("-v", "--verbose", "-q", "--quiet"), arguments))
    if not words or words[0] not in COMMANDS or None in (sys.stdin, sys.stdout, sys.stderr):
        return None
    with ExitStack() as opened:
        try:
            if (connection := _connect()) is None:
                return None
            opened.enter_context(connection)
            if (turn := _take_turn()) is None:
                if not {"-v", "--verbose"}.isdisjoint(arguments):
                    _say("note: the background process is busy; this command runs without it")
                return None
            opened.callback(os.close, turn)
            answer: object = "different"
            if has_same_rights(connection):
                send(connection, {"do": "run", "source": source(), "settings": settings()})
                answer = receive(connection).get("answer")
            if answer == "different" and {"-q", "--quiet"}.isdisjoint(arguments):
                why = "another version, other settings or other rights"
                restart = "`runnel serve --stop`, then `runnel serve --background`"
                _say(f"note: the background process has {why}; this command runs without it. To use it, restart it: {restart}")
            if answer != "ready":
                return None
            _hand_over(connection, arguments, turn)
        except (OSError, ValueError):
            return None  # it has ended or hangs; it starts no command before it has the whole last message
        except KeyboardInterrupt:  # before the command began
            _say("interrupted")
            return 130
        return _wait(connection, failed=COMMANDS[words[0]])


def _take_turn() -> int | None:
    """Return the descriptor of a file that is locked until all its copies are closed; None while another command has it."""
    import fcntl  # missing on Windows

    turn = os.open(folder() / "turn", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(turn)
        return None
    return turn


def _hand_over(connection: socket.socket, arguments: Sequence[str], turn: int) -> None:
    umask = os.umask(0o077)
    os.umask(umask)
    streams: Sequence[Any] = (sys.stdin, sys.stdout, sys.stderr)
    message = {
        "arguments": list(arguments),
        "environment": dict(os.environ),
        "streams": [[stream.encoding, stream.errors, stream.write_through] for stream in streams],
        "umask": umask,
    }
    place = os.open(".", getattr(os, "O_PATH", os.O_RDONLY))
    try:
        socket.send_fds(connection, [b" "], [0, 1, 2, place, turn])
    finally:
        os.close(place)
    send(connection, message)


def _wait(connection: socket.socket, failed: int) -> int:
    """Return the exit code of the command. Ctrl-C interrupts it; a second one does not wait for its end."""
    connection.settimeout(None)
    try:
        try:
            code = receive(connection)["exit"]
        except KeyboardInterrupt:
            connection.shutdown(socket.SHUT_WR)
            code = receive(connection)["exit"]
    except KeyboardInterrupt:
        return 130
    except (OSError, ValueError, KeyError):
        _say(f"error: the background process ended before this command did; {folder() / 'log'} may say why; repeat the command")
        return failed
    return int(code)


def _say(message: str) -> None:
    from runnel.commands.display import say  # its imports would take half of the time until a command is handed over

    say(message)


def start(idle_minutes: float) -> dict[str, Any]:
    """Start the background process, and return its status. Of two that are started at once, one ends at once."""
    if not hasattr(socket, "send_fds"):
        raise BackendUnavailable("the background process needs Unix sockets, which Python does not have here; omit --background")
    deadline = time.monotonic() + _START_S
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    expect_private()
    with (folder() / "log").open("ab") as log:
        process = subprocess.Popen(
            [*PROGRAM, str(idle_minutes)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
        )
    while (current := status()) is None:
        if process.poll() or time.monotonic() > deadline:
            raise BackendUnavailable(f"the background process has not started; {folder() / 'log'} says why")
        time.sleep(0.02)
    return current


def status() -> dict[str, Any] | None:
    """Return the facts of the background process; None if there is none, or it is just starting."""
    if (connection := _connect()) is None:
        return None
    connection.close()
    try:
        state: dict[str, Any] = json.loads((folder() / "status").read_bytes())
    except (OSError, ValueError):
        return None
    if (turn := _take_turn()) is not None:
        os.close(turn)
    return state | {"busy": turn is None}


def stop() -> None:
    """Stop the background process after its current command, and wait for its end."""
    if (connection := _connect()) is not None:
        with connection, suppress(ConnectionError):
            send(connection, {"do": "stop"})
            connection.settimeout(None)
            connection.recv(1)  # nothing: it has ended


def folder() -> Path:
    """Return the folder of the socket: in $XDG_RUNTIME_DIR, else in the folder for temporary files.

    Not in the cache folder: the path of a socket has at most 104 bytes.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime):
        return Path(runtime, "runnel")
    return Path(os.environ.get("TMPDIR", "/tmp"), f"runnel-{os.getuid()}")


def expect_private() -> None:
    """Raise BackendUnavailable if the folder exists, and belongs to somebody else or can be entered by others."""
    if hasattr(socket, "send_fds") and os.path.lexists(folder()) and not _is_private(folder()):
        advice = f"run `chmod 700 {folder()}`, or remove it if it is not yours"
        raise BackendUnavailable(f"{folder()} can be entered by others, so commands would not be private; {advice}")


def _is_private(path: Path) -> bool:
    facts = path.lstat()
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and not stat.S_IMODE(facts.st_mode) & 0o077


def has_same_rights(connection: socket.socket) -> bool:
    """Return whether the other end has the user, files, networks and limits of this process.

    The system says so, where it can: a process in a sandbox must not leave it, whatever it sends.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)  # process, user and group
    try:
        return _rights(str(int.from_bytes(peer[:4], sys.byteorder))) == _rights("self")
    except OSError:  # a process of another namespace, which this one may not look into; or it has ended
        return False


def _rights(process: str) -> list[object]:
    """Return the root folder, namespaces, user, rights and limits of a process."""
    place = Path("/proc", process)
    root = (place / "root").stat()
    spaces = [os.readlink(place / "ns" / name) for name in ("mnt", "net", "user")]
    rights = [line for line in (place / "status").read_text().splitlines() if line.startswith(_RIGHTS)]
    limits = (place / "limits").read_text().splitlines()
    # Editors raise the soft limit of open files for their terminals.
    limits = [line.split()[-2] if line.startswith("Max open files") else line for line in limits]
    return [root.st_dev, root.st_ino, *spaces, *rights, *limits]


def _connect() -> socket.socket | None:
    if not hasattr(socket, "send_fds"):  # Windows
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_ANSWER_S)
        if _is_private(folder()):
            connection.connect(str(folder() / "socket"))
            return connection
    except OSError:  # no folder, no socket, or one that a killed process left
        pass
    connection.close()
    return None


def send(connection: socket.socket, message: Mapping[str, object]) -> None:
    """Send one message."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def receive(connection: socket.socket) -> dict[str, Any]:
    """Receive one message: the other end sends the next one only after an answer. Raises ValueError if it is not whole."""
    with connection.makefile("rb") as lines:
        message: dict[str, Any] = json.loads(lines.readline())
    return message


def source() -> list[object]:
    """Return facts that change when this package, Python or an installed package changes."""
    import site

    package = os.path.dirname(os.path.dirname(__file__))
    files = [os.path.join(at, name) for at, _, names in os.walk(package) for name in names if name.endswith(".py")]
    newest = max(os.stat(file).st_mtime_ns for file in files)
    installed = [os.stat(path).st_mtime_ns for path in site.getsitepackages() if os.path.isdir(path)]
    return [package, sys.prefix, sys.version, len(files), newest, *installed]


def settings() -> dict[str, str]:
    """Return the environment variables that have an effect only at the start of a process, and the encoding of file names."""
    chosen = {name: value for name, value in os.environ.items() if name.startswith(_READ_ONCE)}
    return chosen | {"file names": sys.getfilesystemencoding()}
