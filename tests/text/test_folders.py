"""Which files below folders are read, compared with git on generated trees."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.files import write_files
from helpers.texts import repeat
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from runnel.errors import InputError, ReadError
from runnel.text.folders import EVERYTHING, Root, Selection, find_files, fixed_part, parse

NAMES = ("a", "b", "z", "ab", "a.txt", "b.md", "build", "c d", "x[1]", "é.txt", "#c", "!d")
PATTERNS = (
    r"""
a|b/|*.txt|!a.txt|/a|a/b|**/b|a/**|!a/|*|!*/|!*.md|build/|!build/|a/**/b|[ab]|[!a]|?|a*|/*|!/a|c d|c\ d|x\[1\]|x[[]1]|# c|\#c|\!d
é.txt|  a|a  |a\ |**|**/|a/*|!a/b|/build/|[a-c].txt|[b-|[z-a]|*.t?t|!**/a.txt|a//b|**/a/**|b/**/|/**/a|a**|**b|a/**b|[[:alpha:]]
![[:lower:]].txt|[[:nothing:]]|ab/../a|./a|*/|!*|/|//a|[^a]|a\|\a|*b*d|b*.md|**/*d/|[]a]|[a\]]
""".strip("\n")
    .replace("\n", "|")
    .split("|")
)
FILE = st.just("text")
TREES = st.recursive(
    FILE,
    lambda inside: st.dictionaries(st.sampled_from(NAMES), inside, min_size=1, max_size=4),
    max_leaves=20,
)
RULES = st.lists(st.sampled_from(PATTERNS), max_size=4).map("\n".join)
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def names(root, *paths, selection=EVERYTHING, **more):
    return [os.path.relpath(file, root) for file in find_files(paths or [root], selection, **more)]


def git(root, *arguments):
    environment = os.environ | {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "XDG_CONFIG_HOME": str(root),
    }
    return subprocess.run(
        ["git", "-C", root, *arguments], capture_output=True, check=True, env=environment
    ).stdout.decode()


def grow(folder, tree, rules):
    """Write a tree; every folder gets the next rules, if any are left."""
    folder.mkdir(exist_ok=True)
    if rules:
        (folder / ".gitignore").write_text(rules.pop(0), encoding="utf-8")
    for name, inside in tree.items():
        if inside == "text":
            (folder / name).write_text("text")
        else:
            grow(folder / name, inside, rules)


@needs_git
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    tree=TREES.filter(lambda tree: tree != "text"),
    rules=st.lists(RULES, max_size=4),
    excluded=RULES,
)
@example(tree={"a": "text", "z": "text"}, rules=["[z-a]"], excluded="")
def test_the_same_files_as_git(tmp_path, tree, rules, excluded):
    root = tmp_path / "tree"
    shutil.rmtree(root, ignore_errors=True)
    git(tmp_path, "init", "-q", "tree")
    (root / ".git" / "info" / "exclude").write_text(excluded, encoding="utf-8")
    grow(root, tree, list(rules))
    listed = git(root, "ls-files", "-z", "--others", "--exclude-standard").split("\0")[:-1]
    assert sorted(names(root)) == sorted(
        name for name in listed if not name.rpartition("/")[2].startswith(".")
    )


@pytest.fixture
def tree(tmp_path):
    grow(
        tmp_path / "tree",
        {"a.txt": "text", "deep": {"b.md": "text", "c.txt": "text", "drafts": {"d.md": "text"}}},
        [],
    )
    return tmp_path / "tree"


def test_files_come_before_folders_by_name_and_keep_the_name_they_were_given(tree, monkeypatch):
    write_files(tree, {"deep/.hidden/e.txt": "", ".f.txt": ""})
    assert names(tree) == ["a.txt", "deep/b.md", "deep/c.txt", "deep/drafts/d.md"]
    monkeypatch.chdir(tree)
    files = find_files(["deep/drafts", ".", tree / "a.txt", ".f.txt", "deep/.hidden"])
    assert list(map(str, files)) == [
        "deep/drafts/d.md",
        "a.txt",
        "deep/b.md",
        "deep/c.txt",
        ".f.txt",
        "deep/.hidden/e.txt",
    ]


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (("*.md",), (), ["deep/b.md", "deep/drafts/d.md"]),
        (("*.md", "a.*"), ("drafts",), ["a.txt", "deep/b.md"]),
        (("deep/",), ("/deep/*.md",), ["deep/c.txt", "deep/drafts/d.md"]),
        (("/b.md",), (), []),
        ((), ("*",), []),
    ],
)
def test_globs_select_files(tree, include, exclude, expected):
    assert names(tree, selection=Selection(include, exclude)) == expected
    for glob in ("", "[a", "#a", "!*.md"):  # these match nothing
        with pytest.raises(InputError, match=re.escape(repr(glob))):
            Selection(include=(*include, glob))


def test_a_path_may_be_a_glob(tree, monkeypatch):
    assert names(tree, f"{tree}/**/*.md") == ["deep/b.md", "deep/drafts/d.md"]
    assert names(tree, f"{tree}/d*", selection=Selection(include=("*.md",))) == [
        "deep/b.md",
        "deep/drafts/d.md",
    ]
    monkeypatch.chdir(tree)
    assert [str(file) for file in find_files(["*.txt"])] == ["a.txt"]
    (tree / "[a].txt").write_text("")
    assert [str(file) for file in find_files(["[a].txt"])] == ["[a].txt"]  # there is such a file
    for missing in ("missing", "missing/*.md", "[a"):
        with pytest.raises(InputError, match="there is no file or folder"):
            list(find_files([missing]))
    assert names(tree, "*.pdf") == []
    below = Root.parse(tree)
    glob = Root.parse(f"{tree}/deep/*.md")
    assert below.covers(tree / "gone" / "x.txt") and not below.covers(tree.parent / "x.txt")
    assert glob.covers(tree / "deep" / "gone.md") and not glob.covers(tree / "deep" / "gone.txt")
    assert not Root(tree, "[").covers(tree / "x.txt")  # a glob that can match nothing
    split = {
        "*.md": ("", "*.md"),
        "/x?/y": ("/", "x?/y"),
        "a/b": ("a/b", ""),
        "/a/[b]/c": ("/a", "[b]/c"),
    }
    assert {path: fixed_part(path) for path in split} == split
    many = parse(repeat("*a", 40) + "b")  # compared in no time
    assert not many.matches(repeat("a", 250), folder=False)
    assert many.matches(repeat("a", 200) + "b", folder=False)


@needs_git
def test_rules_above_a_named_folder_hold_in_a_repository_unless_they_ignore_it(tree):
    write_files(tree, {".gitignore": "*\n", "deep/.gitignore": b"\xef\xbb\xbf*.txt\r\n\xff\r\n"})
    assert names(tree) == []
    assert names(tree, tree / "deep") == ["deep/b.md", "deep/drafts/d.md"]
    (tree / "deep" / ".gitignore").unlink()
    git(tree, "init", "-q")
    (tree / ".gitignore").write_text("drafts/\n*.txt\n")
    assert names(tree, tree / "deep") == ["deep/b.md"]
    assert names(tree, tree / "deep" / "drafts") == ["deep/drafts/d.md"]
    assert names(tree, tree / "a.txt") == ["a.txt"]
    assert len(names(tree, selection=Selection(ignore_files=False))) == 4


@needs_git
def test_ignore_files_hold_over_those_of_git_in_all_repositories(tree):
    (tree / ".ignore").write_text("c.txt\n!a.txt\n")
    assert names(tree) == ["a.txt", "deep/b.md", "deep/drafts/d.md"]
    git(tree, "init", "-q")
    write_files(
        tree,
        {
            ".gitignore": "*.txt\n",
            "deep/.gitignore": "!c.txt\n",  # further in, and yet weaker
        },
    )
    assert names(tree) == ["a.txt", "deep/b.md", "deep/drafts/d.md"]
    assert names(tree, tree / "deep") == ["deep/b.md", "deep/drafts/d.md"]
    git(tree, "init", "-q", "deep")
    assert names(tree) == ["a.txt", "deep/b.md", "deep/drafts/d.md"]
    (tree / "deep" / ".ignore").write_text("*\n!c.txt\n")
    assert names(tree) == ["a.txt", "deep/c.txt"]
    assert len(names(tree, selection=Selection(ignore_files=False))) == 4


@needs_git
@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({".gitignore": "*.txt", ".ignore": "!a.txt", ".rgignore": "a.txt"}, ["b.md", "d.md"]),
        ({".gitignore": "*.txt", ".ignore": "*.md", ".rgignore": "!*.md"}, ["b.md", "d.md"]),
        (
            {"deep/.gitignore": "!c.txt", "deep/.ignore": "!c.txt", ".rgignore": "c.txt"},
            ["b.md", "d.md"],
        ),
        ({"deep/.rgignore": "!c.txt", ".rgignore": "c.txt"}, ["b.md", "c.txt", "d.md"]),
        ({".rgignore": "drafts/"}, ["b.md", "c.txt"]),
        ({"../.gitignore": "*", "../.ignore": "c.txt"}, ["b.md", "d.md"]),  # above the repository
        ({"../.ignore": "drafts/", "../.rgignore": "/tree/deep/b.md"}, ["c.txt"]),
        ({"../.rgignore": "deep/"}, ["b.md", "c.txt", "d.md"]),  # which is named
    ],
)
def test_ripgreps_rules_hold_over_those_of_git_and_in_all_folders_below(tree, rules, expected):
    # ripgrep 13 lists the same files
    git(tree, "init", "-q")
    write_files(tree, rules)
    assert [name.rpartition("/")[2] for name in names(tree, tree / "deep")] == expected


@needs_git
@pytest.mark.parametrize("at", ["default", "gitconfig", "xdg", "quoted"])
def test_the_users_rules_for_all_repositories_hold_in_repositories(tree, monkeypatch, at):
    home = tree.parent / "home"
    place = home / ".config/git/ignore" if at == "default" else home / "my rules"
    value = f'"{place}"' if at == "quoted" else "~/my rules"
    config = home / (".config/git/config" if at == "xdg" else ".gitconfig")
    write_files(tree.parent, {str(place.relative_to(tree.parent)): "*.txt\n!a.txt\nc.txt\n"})
    if at != "default":
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(f"[user]\n\tname = me\n[core]\n\texcludesFile = {value}\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert len(names(tree)) == 4  # no repository
    git(tree, "init", "-q")
    expected = ["a.txt", "deep/b.md", "deep/drafts/d.md"]
    assert names(tree) == expected
    listed = subprocess.run(
        ["git", "-C", tree, "ls-files", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    assert listed.splitlines() == expected
    (tree / ".git/info/exclude").write_text("!c.txt\n")  # the repository's own rules hold over them
    assert "deep/c.txt" in names(tree)
    assert len(names(tree, selection=Selection(ignore_files=False))) == 4
    place.write_bytes(b"\xff\n*.md\n")
    assert names(tree) == ["a.txt", "deep/c.txt"]


@needs_git
def test_a_repository_inside_another_has_its_own_rules_and_a_linked_tree_those_of_its_repository(
    tree,
):
    git(tree, "init", "-q")
    (tree / ".gitignore").write_text("*.txt\n")
    git(tree, "init", "-q", "deep")
    assert names(tree) == ["deep/b.md", "deep/c.txt", "deep/drafts/d.md"]
    (tree / "deep" / ".git" / "info" / "exclude").write_text("drafts\n")
    assert names(tree) == ["deep/b.md", "deep/c.txt"]
    git(
        tree / "deep",
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b.c",
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "empty",
    )
    git(tree / "deep", "worktree", "add", "-q", "../linked")
    write_files(tree, {"linked/drafts": "", "linked/e.md": ""})
    assert names(tree, tree / "linked") == ["linked/e.md"]


def test_links_are_not_followed_to_folders_and_an_index_is_skipped_or_refused_by_name(tree):
    (tree / "loop").symlink_to(tree)
    (tree / "to_nothing").symlink_to(tree / "missing")
    (tree / "circle").symlink_to("circle")
    (tree / "below_a_file").symlink_to("a.txt/b")
    (tree / "to_file.txt").symlink_to(tree / "deep" / "b.md")
    (tree / "folder_link").symlink_to(tree / "deep")
    assert names(tree) == ["a.txt", "to_file.txt", "deep/b.md", "deep/c.txt", "deep/drafts/d.md"]
    assert names(tree, tree / "folder_link" / "drafts") == ["folder_link/drafts/d.md"]
    (tree / "long.txt").symlink_to(repeat("x", 300))
    errors = []
    assert len(names(tree, on_error=errors.append)) == 5
    assert [error.filename for error in errors] == [str(tree / "long.txt")]
    (tree / "long.txt").unlink()
    for name in ("commits.lance", "documents.lance"):
        (tree / "library" / name).mkdir(parents=True)
    (tree / "library" / "writer.lock").write_text("process 7")
    assert not any(name.startswith("library") for name in names(tree))
    with pytest.raises(InputError, match="library is an index"):
        names(tree, tree / "library")


@pytest.mark.parametrize("damage", ["folder", "rules"])
def test_what_cannot_be_read_is_reported(tree, damage, monkeypatch):
    scandir, read_text = os.scandir, Path.read_text
    (tree / "deep" / ".gitignore").write_text("drafts")

    def refuse(path, read, **options):
        broken = tree / "deep" if damage == "folder" else tree / "deep" / ".gitignore"
        if Path(path) == broken:  # permissions do not stop root
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, **options)

    monkeypatch.setattr(os, "scandir", lambda path: refuse(path, scandir))
    monkeypatch.setattr(
        Path, "read_text", lambda path, **options: refuse(path, read_text, **options)
    )
    with pytest.raises(ReadError, match=r"deep.*Permission denied"):
        names(tree)
    errors = []
    assert names(tree, on_error=errors.append) == (
        ["a.txt"]
        if damage == "folder"
        else ["a.txt", "deep/b.md", "deep/c.txt", "deep/drafts/d.md"]
    )
    assert [error.filename for error in errors] == [
        str(tree / "deep" / ("" if damage == "folder" else ".gitignore"))
    ]
