"""Commands run in the background process as in a process of their own: the same bytes, exit codes and files.

Everything is real: processes, sockets, terminals and the model `pocket`.
"""

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading

import pytest
from helpers.children import PATHS
from helpers.waiting import GIVE_UP_S, wait_for

from runnel import cli, daemon
from runnel.cli import LIKE_GREP
from runnel.commands import background

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the background process was tested on Linux only"),
]


def without_progress(err):
    """Remove the lines that a command writes on a slow machine, such as "runnel: reading: 5 s"."""
    return re.sub(rb"runnel: [a-z ]+: ([\d,]+ .*, )?[\d,]+ s\n", b"", err)


class CommandLine:
    """Runs `python -m runnel` in a folder; with `warm` it finds the background process of its subfolder "runtime"."""

    def __init__(self, folder):
        self.folder, self.runtime = folder, folder / "runtime"
        self.runtime.mkdir()

    def environment(self, *, warm=True, **more):
        place = self.runtime if warm else self.folder / "none"
        return os.environ | PATHS | {"XDG_RUNTIME_DIR": str(place), "RUNNEL_CACHE": str(self.folder / "cache")} | more

    def popen(self, *arguments, warm=True, cwd=None, environment=None, **streams):
        command = [sys.executable, "-m", "runnel", *map(str, arguments)]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | streams
        variables = self.environment(warm=warm, **(environment or {}))
        return subprocess.Popen(command, cwd=cwd or self.folder, env=variables, **streams)

    def __call__(self, *arguments, data=b"", **options):
        """Return exit code, stdout and stderr of a command, without progress."""
        with self.popen(*arguments, **options) as process:
            out, err = process.communicate(data, timeout=GIVE_UP_S)
        return process.returncode, out, without_progress(err)


QUESTION = "Where does water go?"
TEXT = "Rivers carry water to the sea. The dog sleeps.\n\nA tuple cannot be changed. Models read text.\n"


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    line = CommandLine(tmp_path_factory.mktemp("b"))
    for name in ("notes", "other"):
        (line.folder / name).mkdir()
    (line.folder / "a.txt").write_text(TEXT)
    (line.folder / "other" / "a.txt").write_text("Water boils. The cat sat.\n")
    (line.folder / "latin.txt").write_bytes("Das Wasser fließt ins Meer. Ein Hund.\n".encode("latin-1"))
    (line.folder / "page.html").write_text("<h1>Water</h1><p>Rivers carry water. Dogs do not.</p>")
    (line.folder / "notes" / "rivers.md").write_text(f"# Rivers\n\n{TEXT}")
    assert line("index", "notes", "--to", "library", warm=False)[0] == 0
    line.cold = line("find", QUESTION, "a.txt", warm=False)
    assert line("serve", "--background")[0] == 0
    yield line
    line("serve", "--stop")


@pytest.fixture
def process(line, monkeypatch):
    line("serve", "--background")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(line.runtime))
    return background.status


SAME = {
    "find": ["find", QUESTION, "a.txt"],
    "find in many": ["find", QUESTION, "a.txt", "missing.txt", "latin.txt", "page.html", "-", "--json", "--dtype", "fp32"],
    "verbose": ["find", "-v", QUESTION, "a.txt"],
    "search": ["search", QUESTION, "--in", "library"],
    "rerank": ["rerank", QUESTION, "a.txt", "-k", "2"],
    "embed": ["embed", "a.txt", "--to", "out.npy"],
    "no index": ["search", QUESTION, "--in", "nowhere"],
    "wrong usage": ["find", QUESTION, "a.txt", "--top-k", "0"],
    "missing arguments": ["rerank", QUESTION],
    "help": ["find", "--help"],
    "an empty question": ["find", " ", "a.txt"],
}


def test_the_same_answers(line, process):
    """Each command in its own process, then all of them twice through one background process, which runs each."""

    def results(**options):
        for name in ("out.npy", "out.ids", "out.npy.json"):
            (line.folder / name).unlink(missing_ok=True)
        found = {name: line(*command, data=TEXT.encode(), **options) for name, command in SAME.items()}
        code, out, err = found["verbose"]
        found["verbose"] = code, out, re.sub(rb"\d+ ms", b"N ms", err)
        return found | {"vectors": (line.folder / "out.npy").read_bytes()}

    cold = results(warm=False)
    assert [cold[name][0] for name in SAME] == [0, 2, 0, 0, 0, 0, 2, 2, 2, 0, 2]
    assert cold["verbose"][2] == (
        b"runnel: Encoder runs with kernels compiled for this processor\nrunnel: read N ms, load N ms, score N ms, print N ms\n"
    )
    before = process()
    assert results() == cold
    assert results() == cold
    after = process()
    assert after["pid"] == before["pid"] and after["commands"] - before["commands"] == 2 * len(SAME)


def test_the_folder_and_the_environment_are_those_of_the_command_line(line, process):
    options = {"cwd": line.folder / "other", "environment": {"COLUMNS": "130", "RUNNEL_CACHE": "here"}}
    first = line("find", QUESTION, "a.txt", "--remember", warm=False, **options)
    assert first[0] == 0 and b"documents are stored in" in first[2]
    shutil.rmtree(line.folder / "other" / "here")
    assert line("find", QUESTION, "a.txt", "--remember", **options) == first
    assert line("find", QUESTION, "a.txt", "--remember", **options) == (0, first[1], b"")
    for colors in ({"FORCE_COLOR": "1", "TERMINAL_WIDTH": "60"}, {}):
        wrong = ("find", QUESTION, "a.txt", "--top-k", "0")
        assert line(*wrong, environment=colors) == line(*wrong, environment=colors, warm=False)
    mask = os.umask(0o077)
    try:
        assert line("embed", "a.txt", "--to", "other/v.npy")[0] == 0
    finally:
        os.umask(mask)
    assert (line.folder / "other" / "v.npy").stat().st_mode & 0o777 == 0o600


def on_terminal(line, *, warm):
    """What a command writes on a terminal of 70 columns, without links, whose ids are random."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 70, 0, 0))
    process = line.popen("search", QUESTION, "--in", "library", warm=warm, stdin=slave, stdout=slave, stderr=slave,
                         environment={"TERM": "xterm-256color"})  # fmt: skip
    os.close(slave)
    shown = b""
    try:
        while data := os.read(master, 1 << 16):
            shown += data
    except OSError:  # Linux reports the end of a terminal as an error
        pass
    os.close(master)
    assert process.wait(GIVE_UP_S) == 0
    return re.sub(rb"\x1b\]8;[^\x1b]*\x1b\\", b"", shown)


def test_a_terminal_is_a_terminal(line, process):
    cold = on_terminal(line, warm=False)
    assert b"\x1b[1;36m" in cold and max(map(len, cold.split(b"\r\n"))) < 110
    assert on_terminal(line, warm=True) == cold


def test_an_interrupt_that_came_before_a_call_that_waits_is_sent_again(monkeypatch):
    sent = []

    def kill(*_):
        sent.append(len(sent))
        cli.interrupted.set() if len(sent) == 3 else None

    monkeypatch.setattr(cli, "interrupted", threading.Event())
    monkeypatch.setattr(daemon, "_AGAIN_S", 0.01)
    monkeypatch.setattr(signal, "pthread_kill", kill)
    mine, other = socket.socketpair()
    other.close()
    with mine:
        daemon._watch(mine, threading.Event())
    assert len(sent) == 3


FULL = b"runnel: error: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("target", ["/dev/full", "a closed pipe"])
def test_output_that_cannot_be_written(line, process, target):
    """Nothing of it appears in the output of the next command."""
    for warm in (False, True):
        if target == "/dev/full":
            output = os.open(target, os.O_WRONLY)
        else:
            reader, output = os.pipe()
            os.close(reader)
        with line.popen("find", QUESTION, "a.txt", warm=warm, stdout=output) as child:
            os.close(output)
            assert (without_progress(child.communicate(timeout=GIVE_UP_S)[1]), child.returncode) == (
                (FULL, 2) if target == "/dev/full" else (b"", 141)
            )
    assert line("find", QUESTION, "a.txt") == line.cold


def waiting(line, process):
    """Start a command that waits for the rest of its standard input, in the background process."""
    child = line.popen("find", QUESTION, "-")
    child.stdin.write(b"\n")
    child.stdin.flush()
    wait_for(lambda: not struct.unpack("i", fcntl.ioctl(child.stdin, termios.FIONREAD, bytes(4)))[0])  # it has been read
    assert process()["busy"]
    return child


def test_ctrl_c_interrupts_the_command(line, process):
    pid = process()["pid"]
    with waiting(line, process) as child:
        child.send_signal(signal.SIGINT)
        assert child.wait(GIVE_UP_S) == 130
        assert (child.stdout.read(), without_progress(child.stderr.read())) == (b"", b"runnel: interrupted\n")
    fresh = wait_for(lambda: (facts := process()) and not facts["commands"] and facts)  # it has started itself again
    assert (fresh["pid"], fresh["busy"]) == (pid, False)
    assert line("find", QUESTION, "a.txt")[0] == 0 and process()["commands"] == 1
    with waiting(line, process) as child:  # so does its end
        child.kill()
        child.wait(GIVE_UP_S)
        wait_for(lambda: (facts := process()) and not facts["busy"])


def test_a_busy_process_is_not_waited_for(line, process):
    with waiting(line, process) as child:
        assert line("find", QUESTION, "a.txt") == line.cold
        noted = line("find", QUESTION, "a.txt", "-v")[2].decode()
        assert noted.startswith("runnel: note: the background process is busy; this command runs without it\n")
        code, out, err = line("serve", "--status")
        assert code == 0 and b": busy, " in out
        assert json.loads(line("serve", "--status", "--json")[1])["busy"] is True
        out, err = child.communicate(TEXT.encode(), timeout=GIVE_UP_S)
    assert (child.returncode, without_progress(err)) == (0, b"") and b"Rivers carry water" in out


def test_a_process_that_dies_is_an_error_then_a_stale_socket_is_ignored(line, process):
    assert {name: 2 if name in LIKE_GREP else 1 for name in background.COMMANDS} == background.COMMANDS
    with waiting(line, process) as child:
        os.kill(process()["pid"], signal.SIGKILL)
        assert child.wait(GIVE_UP_S) == 2
        assert child.stdout.read() == b""
        assert f"{line.runtime / 'runnel' / 'log'} may say why" in child.stderr.read().decode()
    assert (line.runtime / "runnel" / "socket").exists()
    assert line("find", QUESTION, "a.txt") == line.cold
    assert line("serve", "--status")[:2] == (1, b"there is no background process\n")
    assert line("serve", "--background")[0] == 0 and process() is not None


def test_stopping_waits_for_the_command(line, process):
    pid = process()["pid"]
    with waiting(line, process) as child:
        stopping = line.popen("serve", "--stop")
        wait_for(lambda: line("find", " ", "a.txt", "-v")[2].startswith(b"runnel: note: the background process is busy"))
        assert stopping.poll() is None
        out, _ = child.communicate(TEXT.encode(), timeout=GIVE_UP_S)
        assert child.returncode == 0 and b"Rivers carry water" in out
    with stopping:
        assert stopping.communicate(timeout=GIVE_UP_S)[0] == f"background process {pid} has stopped\n".encode()
    assert process() is None and not (line.runtime / "runnel" / "socket").exists()


DIFFERENT = b"runnel: note: the background process has another version, other settings or other rights;"


def test_other_settings_and_other_sources_run_without_it(line, process):
    code, out, err = line("find", QUESTION, "a.txt", environment={"OMP_NUM_THREADS": "1", "NUMBA_BOUNDSCHECK": "0"})
    assert (code, out) == line.cold[:2]
    assert err.startswith(DIFFERENT)
    with background._connect() as connection:
        changed = [*background.source()[:-1], 0]
        background.send(connection, {"do": "run", "source": changed, "settings": background.settings()})
        assert background.receive(connection) == {"answer": "different"}
    assert process()["busy"] is False


HELLO = """
from runnel.commands import background
with background._connect() as connection:
    background.send(connection, {"do": "run", "source": background.source(), "settings": background.settings()})
    print(background.receive(connection)["answer"])
"""
MOUNTED = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]


@pytest.mark.parametrize(
    ("begin", "found"),
    [
        ([], b"Rivers carry water"),
        ([*MOUNTED, "sh", "-c", 'mount --bind other/a.txt a.txt && exec "$@"', "sh"], b"Water boils"),
        (["sh", "-c", 'ulimit -f 123456 && exec "$@"', "sh"], b"Rivers carry water"),
    ],
    ids=["the same", "another mount", "a limit"],
)
def test_a_sandbox_is_not_left(line, process, begin, found):
    """Neither by the command line, nor by a process that sends whatever it likes."""
    if subprocess.run([*begin, "true"], cwd=line.folder, capture_output=True).returncode:
        pytest.skip("this system does not let this user mount")

    def run(*arguments):
        done = subprocess.run(
            [*begin, sys.executable, *arguments], cwd=line.folder, env=line.environment(), capture_output=True, check=True
        )
        return done.stdout, without_progress(done.stderr)

    before = process()["commands"]
    out, err = run("-m", "runnel", "find", QUESTION, "a.txt")
    assert found in out and (err.startswith(DIFFERENT) if begin else not err)
    assert run("-c", HELLO)[0] == (b"different\n" if begin else b"ready\n")
    assert process()["commands"] == before + (not begin)


def test_what_is_no_command_line_is_ignored(line, process, monkeypatch):
    for name, value in (line.environment() | {"GOMP_SPINCOUNT": "4000"}).items():  # importing runnel before torch sets the last
        monkeypatch.setenv(name, value)
    hello = {"do": "run", "source": background.source(), "settings": background.settings()}
    for data in (b"", b"\n", b"GET / HTTP/1.0\r\n\r\n", b"[]\n", b'{"do": "dance"}\n', b'{"do": "run"}\n', b"\xff\xfe\n"):
        with background._connect() as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(100) in (b"", b'{"answer": "different"}\n')
    for second in (b"", b" {}\n", b' {"arguments": ["find"]}\n'):  # without descriptors, or not whole
        with background._connect() as connection:
            background.send(connection, hello)
            assert background.receive(connection) == {"answer": "ready"}
            connection.sendall(second)
        wait_for(lambda: not process()["busy"])
    assert line("find", QUESTION, "a.txt") == line.cold


def test_memory_does_not_grow(line, process):
    commands = [SAME[name] for name in ("find", "find in many", "search", "rerank")]
    for command in commands * 2:
        line(*command, data=TEXT.encode())
    before = process()["peak_bytes"]
    for command in commands * 8:
        line(*command, data=TEXT.encode())
    assert process()["peak_bytes"] - before < 20e6


def test_two_starts_at_once_start_one_which_ends_when_it_is_idle_in_a_private_folder(tmp_path):
    line = CommandLine(tmp_path)
    children = [line.popen("serve", "--background", "--idle", "0.1") for _ in range(2)]
    outputs = [child.communicate(timeout=GIVE_UP_S) for child in children]
    assert [child.returncode for child in children] == [0, 0], outputs
    assert len({out.split()[2] for out, _ in outputs}) == 1
    wait_for(lambda: not (line.runtime / "runnel" / "socket").exists())
    assert line("serve", "--background")[0] == 0  # again, in a folder that is private
    folder = line.runtime / "runnel"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    assert b"background" not in line("find", " ", "a.txt", "-v")[2]  # a folder that others can enter is not trusted
    for option in ("--background", "--status", "--stop"):
        code, out, err = line("serve", option)
        assert (code, out) == (1, b"") and f"{folder} can be entered by others" in err.decode()
    folder.chmod(0o700)
    assert line("serve", "--stop")[0] == 0


def test_a_command_is_handed_over_without_heavy_imports(line, process):
    program = (
        "import os, sys\n"
        "from runnel.__main__ import main\n"
        f"sys.argv = ['runnel', 'find', {QUESTION!r}, 'a.txt']\n"
        "end, os._exit = os._exit, lambda code: print('LOADED', code, *sorted(sys.modules))\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=line.folder, env=line.environment(), capture_output=True, text=True, check=True
    )
    code, *loaded = done.stdout.partition("LOADED ")[2].split()
    assert code == "0" and not {"typer", "rich", "numpy", "torch", "runnel.cli"} & set(loaded)
    assert json.dumps(loaded).count("runnel") < 8
