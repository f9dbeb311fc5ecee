"""What commands show: progress, and what others have written (texts, ids, names of files) as text,
never as terminal commands.
"""

import ast
import io
import json
import logging
import re
import sys
import time
import zipfile
from functools import cache
from pathlib import Path
from queue import Queue

import pytest
from helpers.children import GIVE_UP_S
from helpers.files import write_files
from numba import njit

import runnel
from runnel.commands import display
from runnel.commands.display import Meter, print_names
from runnel.commands.printable import printable
from runnel.ops import numba_math

# Colors, a window title, another way to begin a sequence (C1), text turned around, and markup of
# the library that draws.
HOSTILE = "\x1b[31mRED\x1b]0;pwn\x07\x9b2J\u202eevil\u2066\x00\r\x7f[red]x[/b]"
NAME = HOSTILE.replace("\x00", "").replace("/", "")
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
SOURCE = Path(runnel.__file__).parent

FORMS = pytest.mark.parametrize("as_json", [(), ("--json",)], ids=["text", "json"])


def check(done, *, code=0):
    """Nothing unsafe, nothing eaten as markup, and no traceback."""
    assert done.code == code, done.err
    assert not UNSAFE.findall(done.out + done.err)
    return done


def documents(folder):
    printed = HOSTILE.replace("\0", "")
    write_files(
        folder,
        {
            f"{NAME}.md": f"# {printed} Head\n\nOne dog {printed}.\n",
            f"{NAME}.txt": "One dog.\n",
        },
    )
    with zipfile.ZipFile(folder / f"{NAME}.docx", "w") as archive:
        archive.writestr(f"{NAME}.xml", "<a/>")
    return [f"{NAME}.{ending}" for ending in ("md", "txt", "docx")]


@FORMS
def test_files_and_rows(run, fake, tmp_path, as_json, terminal):
    names = documents(tmp_path)
    rows = f"{NAME}.jsonl"
    row = {"title": HOSTILE, "text": f"one dog {HOSTILE}"}
    (tmp_path / rows).write_text(
        "".join(
            json.dumps(row | {"id": f"id{n}{''.join(HOSTILE.split())}"}) + "\n" for n in range(2)
        )
    )
    done = check(run("find", "one dog", *names, "missing" + NAME, *as_json), code=2)
    assert done.err.count("runnel: error") == 2 and "[red]x[" in done.out
    done = check(run("find", "one dog", names[1], *as_json))  # its name is in the last line
    assert "[red]x[b].txt" in done.out
    check(run("find", "one dog", rows, *as_json))
    done = check(run("rerank", f"dog {HOSTILE}", rows, *as_json))
    assert "[red]x[/b]" in done.out
    if as_json:  # it has what the texts have
        assert json.loads(done.out)["hits"][0]["text"].endswith(f"one dog {HOSTILE}")
        assert (
            r"\u001b[31mRED" in done.out
            and r"\u202eevil\u2066" in done.out
            and r"\u009b2J" in done.out
        )
    check(run("lab", "mine", f"{NAME}.csv", "--to", f"{NAME}.jsonl"), code=1)


@FORMS
def test_index_and_search(run, tmp_path, monkeypatch, as_json):
    monkeypatch.setattr(logging.root, "handlers", [])  # else pytest takes the records
    (tmp_path / "files").mkdir()
    documents(tmp_path / "files")
    done = check(run("index", "files", "--to", "library", *as_json), code=1)
    assert "left out" in done.err
    done = check(run("search", "one dog", "--in", "library", *as_json))
    assert "[red]x[" in done.out
    check(run("search", "one dog", "--in", NAME, *as_json), code=2)


def test_names_cannot_look_like_lines_of_the_output(run, tmp_path):
    forged = "a\n 1. forged"
    write_files(
        tmp_path,
        {
            f"files/{forged}.md": "# Head\n\nOne dog.\n",
            "rows.jsonl": json.dumps({"id": forged, "text": "one dog"}) + "\n",
        },
    )
    run("index", "files", "rows.jsonl", "--to", "library")
    for done in (
        run("find", "one dog", f"files/{forged}.md", "rows.jsonl"),
        run("search", "one dog", "--in", "library"),
    ):
        assert "a  1. forged" in done.out and not [
            line for line in done.out.splitlines() if line.startswith(" 1. forged")
        ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("as it is, ünï 文字", "as it is, ünï 文字"),
        # Persian: the joiner is part of how the word is written
        ("می\u200cخواهم", "می\u200cخواهم"),
        (
            "👩\u200d👩\u200d👧 👩🏽\u200d🚀 ❤\ufe0f\u200d🔥",
            "👩\u200d👩\u200d👧 👩🏽\u200d🚀 ❤\ufe0f\u200d🔥",
        ),
        ("ക\u0d4d\u200d", "ക\u0d4d\u200d"),
        ("pay\u200dpal \u200c, \u200d\u200d", "pay\ufffdpal \ufffd, \ufffd\ufffd"),
        ("a\x1b[0m\x9b\u202e\ue000\ud800", "a\ufffd[0m\ufffd\ufffd\ufffd\ufffd"),
        ("lines\r\nand\x0bothers\x85 \u2028\t\u3000\xa0", "lines \nand others   \t\u3000\xa0"),
        ("", ""),
    ],
)
def test_what_can_be_printed(text, shown):
    assert printable(text) == shown and len(shown) == len(text)


ALLOWED = {
    "commands/display.py": {
        "sys.stdout.write",
        "sys.stdout.buffer.write",
        "sys.stderr.write",
        "Console",
    }
}


def _calls(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in ("print", "Console", "os.write") or re.search(
                r"(^|\.)(std(out|err)(\.buffer)?\.write(lines)?|s?echo|Console)$", name
            ):
                yield name


def test_only_display_writes_to_the_terminal():
    parts = ("commands", "cli", "lab", "models", "search")
    found = {path: set(_calls(path)) for part in parts for path in (SOURCE / part).rglob("*.py")}
    names = {path.relative_to(SOURCE).as_posix(): calls for path, calls in found.items() if calls}
    assert {
        name: calls - ALLOWED.get(name, set())
        for name, calls in names.items()
        if calls - ALLOWED.get(name, set())
    } == {}
    assert set(ALLOWED) <= set(names)


# ---- progress on stderr, and names on stdout -----------------------------------------------------


@pytest.fixture
def nothing_compiled(monkeypatch):
    """As in a process in which no kernel has been compiled yet."""
    note = cache(numba_math._note_compiling.__wrapped__)
    monkeypatch.setattr(numba_math, "_note_compiling", note)


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.usefixtures("nothing_compiled")
def test_compiling_is_told_once_by_a_command(capsys, monkeypatch, quiet):
    monkeypatch.setattr(logging.root, "handlers", [display.LogLines()])
    levels = {name: logging.getLogger(name).level for name in ("root", "runnel", "runnel.kernels")}
    monkeypatch.setattr(display, "_progress_shown", True)  # so that it is restored
    try:
        display.show_on_stderr(None, quiet=quiet, verbose=False)
        njit(lambda x: x + 1)(1)
        njit(lambda x: x + 2)(1)
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
    line = "runnel: compiling kernels for this processor, once; later runs start at once\n"
    assert capsys.readouterr().err == ("" if quiet else line)


@pytest.mark.usefixtures("nothing_compiled")
def test_a_program_that_uses_the_library_is_told_nothing_of_compiling(caplog):
    njit(lambda x: x + 3)(1)
    assert not caplog.records


class Terminal(io.StringIO):
    def isatty(self):
        return True


def show_on_terminal(monkeypatch, bar_s):
    """Make stderr a terminal, on which bars are shown after so many seconds. Pytest replaces what a
    fixture sets.
    """
    for name, value in (("TERM", "xterm"), ("COLUMNS", "100")):
        monkeypatch.setenv(name, value)
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(display, "_BAR_S", bar_s)
    return screen


@pytest.mark.parametrize(("seconds", "shown"), [(60.0, False), (0.0, True)])
def test_meter_shows_tokens_per_second_once_work_takes_long(monkeypatch, seconds, shown):
    screen = show_on_terminal(monkeypatch, seconds)
    with Meter("reading") as meter:
        meter(500, 1000)
        meter(1000, 1000)
    assert all(
        (text in screen.getvalue()) == shown for text in ("reading", "1,000 tokens", "tokens/s")
    )


def test_a_bar_shows_the_file_and_no_total_before_the_last_file_is_opened(monkeypatch):
    screen = show_on_terminal(monkeypatch, 0.0)
    totals = []
    with Meter("reading") as meter:
        for number in meter.files(range(3)):  # shown before anything is read
            meter(number, 40)
            assert meter._bar is not None
            totals.append(meter._bar.tasks[0].total)
    assert totals == [None, None, 40]
    assert "reading file 1 of 3" in screen.getvalue()
    assert "reading file 3 of 3" in screen.getvalue()


def test_meter_writes_lines_where_there_is_no_terminal(monkeypatch):
    """Also while one step takes long, and none after the end."""
    said = Queue()
    monkeypatch.setattr(display, "_write_line", said.put)
    monkeypatch.setattr(display, "_FIRST_S", 0.01)
    monkeypatch.setattr(display, "_EVERY_S", 0.01)

    def next_line():
        for _ in range(said.qsize() + 1):  # the next one may have been begun before
            said.get(timeout=GIVE_UP_S)
        return said.get(timeout=GIVE_UP_S)

    with Meter("reading", unit="questions") as meter:
        assert re.fullmatch(r"reading: \d+ s", next_line())
        meter(3)
        assert re.fullmatch(r"reading: 3 questions, [\d.]+ questions/s, \d+ s", next_line())
        meter(1200, 4800)
        assert re.fullmatch(
            r"reading: 1,200 of 4,800 questions, [\d,]+ questions/s, \d+ s", next_line()
        )
        files = meter.files(range(43))
        assert [next(files) for _ in range(12)] == [*range(12)]
        meter(1300, 4800)
        assert re.fullmatch(
            r"reading file 12 of 43: 1,300 questions, [\d,]+ questions/s, \d+ s", next_line()
        )
        assert [*files][-1] == 42
        meter(4700, 4800)
        assert re.fullmatch(
            r"reading file 43 of 43: 4,700 of 4,800 questions, [\d,]+ questions/s, \d+ s",
            next_line(),
        )
    count = said.qsize()
    time.sleep(0.1)
    assert said.qsize() == count


def test_names_are_safe_on_a_terminal_and_unchanged_elsewhere(capsysbinary, monkeypatch):
    names = ["a\x1b]0;x\x07.txt", "two\nlines", "caf\udce9"]
    print_names(names)
    assert capsysbinary.readouterr().out == b"a\x1b]0;x\x07.txt\ntwo\nlines\ncaf\xe9\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_names(names)
    assert capsysbinary.readouterr().out.decode() == "a\ufffd]0;x\ufffd.txt\ntwo lines\ncaf\ufffd\n"


def test_no_password_and_no_key_on_stderr(capsys, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "s3cr3t+of/a-user")
    shown = (
        "at ray://me:s3cr3t@host:1/a?b=1&Token=s3cr3t and http://s3cr3t@[::1]/x:"
        " s3cr3t%2Bof%2Fa-user, 's3cr3t+of/a-user'"
    )
    plain = (
        "s3://bucket/a@b, http://host:80/@name?page=2, abfss://container@account/x, mail@host, a=b"
    )
    display.say(f"{shown}; {plain}")
    assert "s3cr3t" not in (said := capsys.readouterr().err)
    assert (
        said.endswith(f"; {plain}\n")
        and "ray://***@host:1/a?b=1&Token=*** and http://***@[::1]/x" in said
    )
    try:
        raise ValueError(shown)
    except ValueError:
        for handler in (display.LogLines(), display.JsonLogLines()):
            handler.emit(
                logging.LogRecord("a", logging.ERROR, "", 1, "%s", (shown,), sys.exc_info())
            )
            assert (
                "s3cr3t" not in (logged := capsys.readouterr().err)
                and "ray://***@host" in logged
                and "ValueError" in logged
            )
    assert json.loads(logged)["message"].startswith("at ray://***@host")


@pytest.mark.parametrize(
    "part", ["://", ":a://", "?key", "?a=", "://a:b", "a@", "%41", "key=token="]
)
def test_what_hides_passwords_takes_no_long_time(part, capsys):
    before = time.process_time()
    display.say(part * (400_000 // len(part)))
    assert time.process_time() - before < 5 and len(capsys.readouterr().err) > 9
