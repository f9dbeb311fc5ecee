"""What commands show on stderr."""

import io
import re
import sys
import time
from queue import Queue

from helpers.waiting import GIVE_UP_S

from runnel.commands import display
from runnel.commands.display import Meter, _compiling, note_compiling, print_names


def test_compiling_is_told_once_per_command(capsys, monkeypatch):
    from numba import njit
    from numba.core import event

    monkeypatch.setitem(event._registered, "numba:compile", [])  # as in a process in which no command has run yet
    _compiling.cache_clear()
    for _ in range(2):  # two commands in one process
        note_compiling()
        njit(lambda x: x + 1)(1)
        njit(lambda x: x + 2)(1)
        assert capsys.readouterr().err == "runnel: compiling kernels for this processor, once; later runs start at once\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_meter_shows_tokens_per_second_once_work_takes_long(monkeypatch):
    for name, value in (("TERM", "xterm"), ("COLUMNS", "100")):
        monkeypatch.setenv(name, value)
    for seconds, shown in ((60.0, False), (0.0, True)):
        monkeypatch.setattr(sys, "stderr", screen := Terminal())
        monkeypatch.setattr(display, "_BAR_S", seconds)
        with Meter("reading") as meter:
            meter(500, 1000)
            meter(1000, 1000)
        assert all((text in screen.getvalue()) == shown for text in ("reading", "1,000 tokens", "tokens/s"))


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
        assert re.fullmatch(r"reading: 1,200 of 4,800 questions, [\d,]+ questions/s, \d+ s", next_line())
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
