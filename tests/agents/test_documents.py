"""Which documents an agent may read: only below the roots, whatever the name says."""

import os
from hashlib import sha256
from pathlib import Path

import pytest
from helpers.files import write_files

from runnel.agents.documents import AgentDocuments, AgentSettings
from runnel.errors import InputError
from runnel.text.documents.reader import DocumentReader


@pytest.fixture
def inside(tmp_path):
    files = {
        "inside/a.txt": "One dog.",
        "inside/sub/b.txt": "One cat.",
        "secret.txt": "a secret",
        "inside-too/c.txt": "another secret",
    }
    write_files(tmp_path, files)
    return tmp_path / "inside"


def documents(*roots):
    return AgentDocuments(AgentSettings(roots), None)


def text(name, *roots):
    (one,) = documents(*roots).read(name, [])
    return one.file, one.document.text


def test_files_below_a_root(inside, tmp_path):
    assert text("a.txt", inside) == ("a.txt", "One dog.")
    assert text("sub/../sub/b.txt", inside) == ("sub/b.txt", "One cat.")
    assert text(str(inside / "a.txt"), inside) == ("a.txt", "One dog.")
    (inside / "link.txt").symlink_to(inside / "a.txt")
    assert text("link.txt", inside) == ("a.txt", "One dog.")
    second = tmp_path / "inside-too"
    assert text(str(second / "c.txt"), inside, second) == (str(second / "c.txt"), "another secret")


OUTSIDE = (
    "../secret.txt ../missing.txt sub/../../secret.txt out.txt out/secret.txt ../inside-too/c.txt"
    " /etc/passwd".split()
)


def test_files_outside_of_the_roots(inside, tmp_path):
    (inside / "out.txt").symlink_to(tmp_path / "secret.txt")
    (inside / "out").symlink_to(tmp_path)
    for name in OUTSIDE:
        with pytest.raises(InputError, match=r"is outside of the allowed folders; .*inside"):
            text(name, inside)


# read here, and by the process that parses
@pytest.mark.parametrize("name", ["sub/b.txt", "sub/b.html"])
@pytest.mark.parametrize(
    ("owner", "function", "seen"),
    [(Path, "resolve", "cannot be opened"), (DocumentReader, "read", "One cat.")],
)
def test_a_folder_that_is_swapped_for_a_link_gives_nothing_from_outside(
    inside, tmp_path, monkeypatch, name, owner, function, seen
):
    for folder, content in ((inside / "sub", "One cat."), (tmp_path / "outside", "a secret")):
        page = f"<html><p>{content}</p></html>" if name.endswith("html") else content
        write_files(folder, {Path(name).name: page})
    call = getattr(owner, function)

    def then_swap(*arguments, **options):
        result = call(*arguments, **options)
        if str(arguments[0]).endswith(name) or owner is DocumentReader:
            (inside / "sub").rename(tmp_path / "moved")
            (inside / "sub").symlink_to(tmp_path / "outside")
        return result

    reading = documents(inside)
    monkeypatch.setattr(owner, function, then_swap)
    try:
        found = next(reading.read(name, [])).document.text
    except InputError as error:
        found = str(error)
    finally:
        reading._reader.close()
    assert seen in found and "secret" not in found


def test_names_of_no_document(inside):
    os.mkfifo(inside / "pipe")
    (inside / "circle").symlink_to(inside / "circle")
    picture = b"\x89PNG\r\n\x1a\n" + bytes(100)
    write_files(inside, {"picture.txt": picture, "bytes.txt": bytes(range(256)) * 4})
    for name, message in {
        "sub": "'sub' cannot be opened",
        "missing.txt": "'missing.txt' cannot be opened: .*inside",
        "pip": "'pip' cannot be opened: .*near names: pipe; name a file below",
        "pipe": "'pipe' cannot be opened",
        "circle": "circle",
        "a\0b": r"'a\\x00b' cannot be opened",
        "": "'' cannot be opened",
        "x" * 5000: "cannot be opened",
        "picture.txt": "is an image; read its text by OCR first",
        "bytes.txt": "bytes.txt",
    }.items():
        with pytest.raises(InputError, match=message):
            text(name, inside)


def test_a_document_is_read_again_when_its_file_changes(inside):
    reading = documents(inside)
    (first,) = reading.read("a.txt", [])
    (kept,) = reading.read("a.txt", [])
    assert kept is first
    (inside / "a.txt").write_text("Two dogs.")
    (again,) = reading.read("a.txt", [])
    assert (
        again.document.text == "Two dogs."
        and again.document.sha256 == sha256(b"Two dogs.").hexdigest()
    )


def test_rows_and_notes(inside):
    (inside / "r.jsonl").write_text('{"id": "x", "text": "one"}\n{"id": "y", "text": "two"}\n')
    assert [(one.file, one.document.id) for one in documents(inside).read("r.jsonl", [])] == [
        ("r.jsonl", "x"),
        ("r.jsonl", "y"),
    ]
    (inside / "old.txt").write_bytes("café".encode("cp1252") + b" and more plain text")
    reading = documents(inside)
    for _ in range(2):  # read, and kept
        notes = []
        list(reading.read("old.txt", notes))
        assert len(notes) == 1 and "cp1252" in notes[0]


def test_lists_have_what_can_be_read(inside, tmp_path):
    """Links out of the folders, and pipes, are counted in a note; folders in any spelling."""
    write_files(inside / "a b", {"ünï 漢字.txt": "One fish.", "[x] *.txt": "One bird."})
    (inside / "out.txt").symlink_to(tmp_path / "secret.txt")
    (inside / "in.txt").symlink_to(inside / "a.txt")
    (inside / "linked").symlink_to("a b")
    os.mkfifo(inside / "pipe")
    agent = documents(inside)
    notes = []
    listed = agent.files(".", notes)
    expected = {"a b/[x] *.txt", "a b/ünï 漢字.txt", "a.txt", "in.txt", "sub/b.txt"}
    assert set(listed) == expected and len(listed) == len(expected)
    assert len(notes) == 1 and notes[0].startswith("2 ")
    for name in listed:
        assert list(agent.read(name, []))
    for name in ("a b", "a b/", "./a b", "sub/../a b", "linked", "a b/*", "linked/*.txt"):
        assert sorted(agent.files(name, [])) == ["a b/[x] *.txt", "a b/ünï 漢字.txt"]
    assert agent.files("a b/[x] *.txt", []) == ["a b/[x] *.txt"]
    for name in ("out.txt", "pipe", "linked/../..", "x" * 5000, "\0"):
        with pytest.raises((InputError, OSError)):
            agent.files(name, [])
