"""`runnel find` with the manners of grep: lines for programs, folders and globs, exit codes, links."""

import json
import os
import re
from urllib.parse import unquote

import pytest
from helpers.document_files import pdf

from runnel.commands.find import parse_min_score
from runnel.errors import InputError

TEXT = "The cat sat.\n\nThe dog\nbarked all night.\n"
HOSTILE = "a\x1b]8;;evil\x1b\\b\nc\x07d;e%20 f#g.txt"  # ends a link, begins another, ends a line


@pytest.fixture
def notes(tmp_path):
    """A folder with documents, a picture and a file that git ignores."""
    (tmp_path / "notes" / "deep").mkdir(parents=True)
    (tmp_path / "notes" / "a.txt").write_text(TEXT)
    (tmp_path / "notes" / "b.md").write_text("# Dogs\n\nThe dog slept.\n")
    (tmp_path / "notes" / "deep" / "c.txt").write_text("One dog. The dog barked all night.")
    (tmp_path / "notes" / "p.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(64)))
    (tmp_path / "notes" / "draft.txt").write_text("A draft about the dog barked.")
    (tmp_path / "notes" / ".gitignore").write_text("draft.txt\n")
    return tmp_path / "notes"


# ---- lines -----------------------------------------------------------------------------------------------------------


def test_without_a_terminal_each_sentence_is_a_line(run, fake, notes):
    done = run("find", "the dog barked", "notes/a.txt")
    assert done.out == "notes/a.txt:3:The dog barked all night.\nnotes/a.txt:1:The cat sat.\n"
    assert (done.code, done.err) == (0, "") and run("find", "the dog barked", "notes/a.txt", "--plain").out == done.out


def test_the_place_of_a_kind_without_lines(run, fake, tmp_path):
    (tmp_path / "a.pdf").write_bytes(pdf([["Nothing."], ["The dog barked."]]))
    (tmp_path / "a.html").write_text("<p>Nothing.</p><p>The dog barked.</p>")
    (tmp_path / "a.jsonl").write_text('{"id": "r7", "text": "The dog barked."}\n')
    (tmp_path / "pages.txt").write_text("Nothing.\n\f\nThe dog barked.")
    names = {"a.pdf": "page 2", "a.html": "characters 10-25", "a.jsonl": "row r7", "pages.txt": "3"}
    for name, where in names.items():
        assert run("find", "the dog barked", name, "-k", 1).out == f"{name}:{where}:The dog barked.\n"
    assert run("find", "dog", "-", "-k", 1, stdin="One dog.").out == "(standard input):1:One dog.\n"


def test_jsonl_is_the_sentences_of_json(run, fake, notes):
    lines = run("find", "the dog barked", "notes", "--jsonl").out.splitlines()
    assert [json.loads(line) for line in lines] == json.loads(run("find", "the dog barked", "notes", "--json").out)["sentences"]
    assert len(lines) == 5


def test_names_of_files_with_sentences(run, fake, notes):
    done = run("find", "the dog barked all night", "notes", "-l")
    assert done.out.splitlines() == ["notes/a.txt", "notes/deep/c.txt", "notes/b.md"]  # best first; the second by a repeat


def test_names_that_are_not_utf_8_or_hold_a_line_end(run, fake, tmp_path):
    names = [b"caf\xe9.txt", b"two\nlines.txt"]
    for name in names:
        with open(os.path.join(os.fsencode(tmp_path), name), "w") as file:
            file.write(f"One dog in {len(name)}.")
    done = run("find", "dog", ".", "--json")
    assert sorted(os.fsencode(file["file"]) for file in json.loads(done.out)["files"]) == names
    assert run("find", "dog", ".", "-l", "--include", "two*").out == "two\nlines.txt\n"  # test_display.py has the other one


# ---- exit codes and scores ------------------------------------------------------------------------------------------


def test_exit_codes_are_those_of_grep(run, fake, notes):
    assert run("find", "dog", "notes").code == 0
    assert run("find", "dog", "notes", "--min-score", "9").code == 1
    assert run("find", "dog", "notes", "missing.txt").code == 2  # even though there are sentences
    assert run("find", " ", "notes").code == 2
    assert run("find", "dog").code == 2


def test_a_score_is_shown_as_the_probability_that_it_stands_for_or_not_at_all(run, fake, notes, terminal):
    places = re.compile(r"^ [12]\. notes/.*  characters \d+-\d+(?:  (.*))?$", re.MULTILINE)
    assert places.findall(run("find", "the dog barked", "notes", "-k", "2").out) == ["", ""]  # its scores only rank
    fake.find.calibrated = True
    assert places.findall(run("find", "the dog barked", "notes", "-k", "2").out) == ["95 %", "88 %"]  # of 3.0 and 2.0


def test_the_lowest_score(run, fake, notes):
    lines = run("find", "the dog barked", "notes", "--min-score", "2", "--jsonl").out.splitlines()
    assert [json.loads(line)["score"] for line in lines] == [3.0, 2.0]
    fake.find.calibrated = True
    assert run("find", "the dog barked", "notes", "--min-score", "90%").out.count("\n") == 1  # a score of 2.197


def test_a_percentage_is_the_score_of_that_probability():
    assert [parse_min_score(text) for text in ("-1.5", "0", "2e1")] == [-1.5, 0.0, 20.0]
    assert parse_min_score("50%") == 0.0 and parse_min_score("20%") == pytest.approx(-1.3863, abs=1e-4)
    for text in ("", "%", "abc", "0%", "100%", "-5%", "nan", "inf", "nan%"):
        with pytest.raises(InputError, match=re.escape(f"--min-score is {text!r}; expected a score such as -1.5, or a percent")):
            parse_min_score(text)


# ---- folders and globs -----------------------------------------------------------------------------------------------


def files(done):
    return [file["file"] for file in json.loads(done.out)["files"]]


def test_folders_are_walked_as_git_walks_them(run, fake, notes):
    done = run("find", "dog", "notes", "--json")
    assert files(done) == ["notes/a.txt", "notes/b.md", "notes/deep/c.txt"]
    assert (done.code, done.err) == (0, "runnel: note: files of kinds that are not read: notes/p.png\n")
    [skipped] = json.loads(done.out)["skipped"]
    assert skipped == {"file": "notes/p.png", "reason": "notes/p.png is an image; read its text by OCR first", "error": False}
    assert files(run("find", "dog", "notes", "--json", "--no-ignore"))[2] == "notes/draft.txt"
    assert files(run("find", "dog", "notes", "--json", "--include", "*.txt", "--exclude", "deep/")) == ["notes/a.txt"]
    assert files(run("find", "dog", "notes/draft.txt", "--json")) == ["notes/draft.txt"]  # it is named


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_in_a_folder_is_not_waited_for(run, fake, notes):
    os.mkfifo(notes / "z.txt")
    done = run("find", "dog", "notes", "--json")
    assert done.code == 0 and "notes/z.txt" in [one["file"] for one in json.loads(done.out)["skipped"]]


def test_a_folder_that_may_not_be_read_is_an_error(run, fake, notes, monkeypatch):
    scandir = os.scandir

    def refusing(path="."):
        if os.fspath(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)  # the superuser may read everything
    done = run("find", "dog", "notes")
    assert done.code == 2 and "notes/a.txt:3" in done.out
    assert done.err.splitlines()[0] == f"runnel: error: {notes}/deep: Permission denied"


# ---- links -----------------------------------------------------------------------------------------------------------


def links(text):
    return re.findall(r"\x1b\]8;id=\d+;(.*?)\x1b\\(.*?)\x1b\]8;;\x1b\\", text, re.S)


@pytest.fixture
def linking(terminal, monkeypatch):
    """A terminal that opens links."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("RUNNEL_EDITOR_URI", raising=False)


def test_places_are_links_on_a_terminal(run, fake, tmp_path, linking, monkeypatch):
    (tmp_path / "a.txt").write_text("x.\n\nOne dog.")
    (tmp_path / "b.pdf").write_bytes(pdf([["Nothing."], ["One dog."]]))
    [(link, shown)] = links(run("find", "one dog", "a.txt", "-k", 1).out)
    assert link == f"file://{tmp_path}/a.txt#L3" and "a.txt:3" in shown
    [(link, _)] = links(run("find", "one dog", "b.pdf", "-k", 1).out)
    assert link == f"file://{tmp_path}/b.pdf#page=2"
    monkeypatch.setenv("RUNNEL_EDITOR_URI", "vscode://file{path}:{line}")
    [(link, _)] = links(run("find", "one dog", "a.txt", "-k", 1).out)
    assert link == f"vscode://file{tmp_path}/a.txt:3"
    [(link, _)] = links(run("find", "one dog", "b.pdf", "-k", 1).out)
    assert link.endswith("/b.pdf#page=2")  # an editor shows no PDF
    assert not links(run("find", "dog", "-", stdin="One dog.").out)
    monkeypatch.setenv("RUNNEL_EDITOR_URI", "code")
    done = run("find", "one dog", "a.txt")
    assert done.code == 2 and "RUNNEL_EDITOR_URI is 'code'; expected a link with {path} and {line}: vscode" in done.err


def test_a_name_cannot_end_a_link_or_begin_another(run, fake, tmp_path, linking):
    (tmp_path / HOSTILE).write_text("One dog.")
    done = run("find", "dog", HOSTILE, "-k", 1)
    [(link, _)] = links(done.out)
    assert re.fullmatch(r"[!-~]+", link) and unquote(link.removeprefix("file://").removesuffix("#L1")) == str(tmp_path / HOSTILE)
    assert done.out.count("\x1b]8;") == 2 and "evil\x1b" not in done.out and "\x07" not in done.out
