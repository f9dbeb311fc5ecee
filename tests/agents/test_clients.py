"""`runnel mcp --install`: the entry is written and taken out again, and nothing else changes."""

import json
import os
import re
import stat
import sys
import tomllib
from pathlib import Path

import anyio
import pytest
from helpers.children import GIVE_UP_S
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client, StdioServerParameters

from runnel.agents.clients import (
    NAME,
    PROGRAMS,
    _changed_json,
    _changed_toml,
    _load_json,
    configure,
)
from runnel.errors import InputError

ENTRY = {"command": "python", "args": ["-m", 'a "b" // c']}
OTHER = {"command": "other", "args": ["// no comment", "a, }"]}
JSON = [
    "",
    "{}",
    "{\n}\n",
    '{"mcpServers": {}}',
    json.dumps({"mcpServers": {"other": OTHER}}),
    json.dumps({"theme": "dark", "mcpServers": {"other": OTHER}}, indent=4),
    json.dumps({"mcpServers": {"z": OTHER, "a": OTHER}, "nested": {"mcpServers": {"runnel": 1}}}),
    json.dumps({"mcpServers": {"other": OTHER}}, indent=2).replace("\n", "\r\n"),
    '\ufeff{\n\t"mcpServers": { // mine\n\t\t"other": {"url": "http://a//b"}, // keep\n\t},\n}\n',
    '/* a, } */ {\n  // "mcpServers": {\n  "mcpServers": {\n    /* b */\n  }\n}',
    '{"mcpServers":\n{"other":{"a":[1,2,],},},}',
    " \n",
    "// none yet\n",
    '{"mcpServers": {"other": 1, // mine\n "last": 2 /* } */ }}',
]
# JSON with an entry already, and all else that stays
ENTRIES = [
    ('{"mcpServers": {"runnel": {} /* c */ , "o": 1}}', {"o": 1}),
    ('{"mcpServers": {"o": 1 /* k */, /* j */ "runnel": {} /* c */ }}', {"o": 1}),
    ('{"mcpServers": {"o": 1, // c\n "runnel": {} }}', {"o": 1}),
    ('{"mcpServers": {"o": 1, // c\r\n "runnel": {} // d\r\n}}', {"o": 1}),
    ('{"mcpServers": { /* a */ "runnel" : [1, {}] , }}', {}),
    (
        '{"mcpServers": {\n  // about runnel\n  "runnel": {},\n  // about o\n  "o": {}\n}}',
        {"o": {}},
    ),
    ('{"mcpServers": {"runnel": "x, }", "o": "\\"runnel\\": 1,"}}', {"o": '"runnel": 1,'}),
]
TOML = [
    "",
    'model = "x"\n',
    '# mine\n[mcp_servers.other]\ncommand = "a" # why\nargs = [\n  "b", # c\n]\n\n[tools]\nx = 1\n',
    '[mcp_servers]\nother = { command = "a" }\n',
    'mcp_servers.other.command = "a"\n',
    'text = """\n[mcp_servers.runnel]\n"""\n',
    "[a]\r\nb = 1\r\n",
    "[mcp_servers.other]\r\nb = 1\r\n# mine\r\n",
]
# TOML with an entry already, and the lines that stay
TABLES = [
    (
        '# mine\n[mcp_servers.runnel]\n# its\ncommand = "a"\nargs = [\n  "b", # c\n]\n\n# about o\n'
        "[mcp_servers.o]\nb = 1\n",
        ["# mine", "# about o", "[mcp_servers.o]", "b = 1"],
    ),
    ('[mcp_servers.runnel]\ncommand = "a"\n\n# tail\n', ["# tail"]),
    (
        '[mcp_servers.o]\na = 1\n\n[mcp_servers."runnel"]\nc = 1\n[mcp_servers.runnel.env]\nX = "1"\n'
        "# about tools\n[tools]\nd = 1\n",
        ["[mcp_servers.o]", "a = 1", "# about tools", "[tools]", "d = 1"],
    ),
    (
        '[mcp_servers]\nrunnel = { command = "a" }\n# about o\no = 1\n',
        ["[mcp_servers]", "# about o", "o = 1"],
    ),
    ('mcp_servers.runnel.command = "a"\nmcp_servers.o = 1 # c\n', ["mcp_servers.o = 1 # c"]),
    ("[mcp_servers.runnel]\r\nc = 1\r\n\r\n# tools\r\n[tools]\r\n", ["# tools", "[tools]"]),
    (
        "[[mcp_servers.runnel]]\nc = 1\n[mcp_servers.runnel2]\nc = 1\n",
        ["[mcp_servers.runnel2]", "c = 1"],
    ),
]
COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|(//[^\r\n]*|/\*.*?\*/)', re.DOTALL)


def comments(text):
    return [found for found in COMMENT.findall(text) if found]


@pytest.mark.parametrize("text", JSON)
def test_json_keeps_all_else(text):
    before = _load_json(text)
    written = _changed_json(text, "mcpServers", ENTRY)
    after = _load_json(written)
    assert after["mcpServers"].pop(NAME) == ENTRY
    assert after == {"mcpServers": {}} | before and comments(written) == comments(text)
    assert ("\r\n" in written) == ("\r\n" in text) and "\r\r" not in written
    assert text.startswith("\ufeff") == written.startswith("\ufeff")
    assert _changed_json(written, "mcpServers", ENTRY) == written
    removed = _changed_json(written, "mcpServers", {})
    assert _load_json(removed) == {"mcpServers": {}} | before and comments(removed) == comments(
        text
    )
    if before.get("mcpServers"):
        assert removed == text
    assert _changed_json(removed, "mcpServers", {}) == removed


@pytest.mark.parametrize(("text", "others"), ENTRIES)
def test_comments_around_an_entry_of_json_stay(text, others):
    removed = _changed_json(text, "mcpServers", {})
    assert _load_json(removed) == {"mcpServers": others} and comments(removed) == comments(text)
    replaced = _changed_json(text, "mcpServers", ENTRY)
    assert _load_json(replaced) == {"mcpServers": others | {NAME: ENTRY}}
    assert comments(replaced) == comments(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(), VALUES, max_size=4),
    st.none() | st.dictionaries(st.text() | st.just(NAME), VALUES, max_size=3),
    st.sampled_from([None, 1, 2, "\t"]),
    st.integers(0, 4),
)
def test_any_json_keeps_all_else(content, servers, width, at):
    items = list(content.items())
    if servers is not None:
        items.insert(at, ("mcpServers", servers))
    content = dict(items)
    if not isinstance(content.get("mcpServers", {}), dict):
        return
    text = json.dumps(content, indent=width)
    others = {name: one for name, one in content.get("mcpServers", {}).items() if name != NAME}
    written = _changed_json(text, "mcpServers", ENTRY)
    assert _load_json(written) == content | {"mcpServers": others | {NAME: ENTRY}}
    removed = _changed_json(written, "mcpServers", {})
    assert _load_json(removed) == content | {"mcpServers": others}


@pytest.mark.parametrize("text", TOML)
def test_toml_keeps_all_else(text):
    before = tomllib.loads(text)
    written = _changed_toml(text, "mcp_servers", ENTRY)
    after = tomllib.loads(written)
    assert after["mcp_servers"].pop(NAME) == ENTRY
    assert after == {"mcp_servers": {}} | before
    rest = iter(written.splitlines())
    assert all(line in rest for line in text.splitlines() if line)  # in their order
    removed = tomllib.loads(_changed_toml(written, "mcp_servers", {}))
    assert {"mcp_servers": {}} | removed == {"mcp_servers": {}} | before
    assert _changed_toml(text, "mcp_servers", {}) == text
    assert _changed_toml(written, "mcp_servers", ENTRY) == written
    assert ("\r\n" in written) == ("\r\n" in text) and written.count("\r\n") in (
        0,
        written.count("\n"),
    )


@pytest.mark.parametrize(
    "after", ["", "\n[other]\nx = 1\n", "\n\n\n[[other]]\n", "[other]\n", "\n# end\n"]
)
@pytest.mark.parametrize(
    "servers",
    ["", '[mcp_servers.one]\ncommand = "x"\n', '[mcp_servers]\none = {command = "x"}\n'],
)
def test_what_is_written_into_toml_is_taken_out_to_the_last_blank_line(servers, after):
    text = f'model = "o3"  # mine\n\n{servers}{after}'
    for form in (text, text.replace("\n", "\r\n")):
        written = _changed_toml(form, "mcp_servers", ENTRY)
        assert tomllib.loads(written)["mcp_servers"][NAME] == ENTRY
        assert _changed_toml(written, "mcp_servers", {}) == form


@pytest.mark.parametrize(("text", "lines"), TABLES)
def test_comments_around_an_entry_of_toml_stay(text, lines):
    removed = _changed_toml(text, "mcp_servers", {})
    assert [line for line in removed.splitlines() if line] == lines
    replaced = _changed_toml(text, "mcp_servers", ENTRY)
    assert tomllib.loads(replaced)["mcp_servers"][NAME] == ENTRY
    rest = iter(replaced.splitlines())
    assert all(line in rest for line in lines if "tail" not in line and "tools" not in line)
    assert all(line in replaced.splitlines() for line in lines)
    assert _changed_toml(replaced, "mcp_servers", ENTRY) == replaced


# What TOML allows and few configurations have, and what a line by line reader takes for a table.
ODD = [
    "x = nan\ny = [inf, -inf, +nan]\n[z]\nw = { v = nan }\n",
    "f = 1.50\ng = 1e06\nh = -0.0\ni = 1_000\nj = 0xDEAD_BEEF\nk = 99999999999999999999999\n",
    "a = 1979-05-27T07:32:00.999999-07:00\nb = 1979-05-27 07:32:00\nc = 1979-05-27\nd = 07:32:00\n",
    'a.b.c = 1\na."d.e" = 2\n"" = 3\n[[p]]\nn = 1\n[[p]]\nn = nan\n[[p.q]]\n[a.f]\ng = 1\n',
    "a = \"\"\"\n[mcp_servers.runnel]\nb = 1\n\"\"\"\nc = '''\n[mcp_servers.runnel]\n'''\n",
    'a = """\\""" [""\n"""""\nb = \'\'\'\'it\'\'\'\'\nc = "\'\'\'" # """\n',
    "[mcp_servers.o]\nn = nan\n\n[other]\nx = 1\n\n[mcp_servers.p]\nd = 1979-05-27\n",
]
# Its own entry, in forms that hold lines like those of other tables.
OWN = [
    '[mcp_servers.runnel]\na = """\n[z]\n"""\nb = nan\n',
    "[mcp_servers.runnel]\na = [\n'[z]',\n]\n[mcp_servers.runnel.env]\nd = 1979-05-27\n",
    '[mcp_servers.runnel]\na = [\n["b"],\n[\n"c"\n]\n]\n',
    "['mcp_servers'.\"runnel\"]\na = 1\n[[mcp_servers.runnel.b]]\nc = nan\n",
]


def assert_rest(text, expected):
    """Compare two configurations but for the entry, floats as they are written."""
    contents = [tomllib.loads(one, parse_float=str) for one in (text, expected)]
    for content in contents:
        content.setdefault("mcp_servers", {}).pop(NAME, None)
    assert contents[0] == contents[1]
    rest = iter(text.splitlines())
    assert all(line in rest for line in expected.splitlines() if line)  # in their order


@pytest.mark.parametrize("own", ["", *OWN])
@pytest.mark.parametrize("text", ODD)
def test_any_value_of_toml_stays(home, text, own):
    path = Path(PROGRAMS["codex"][0]).expanduser()
    path.parent.mkdir()
    path.write_text(f"{text}\n{own}")
    for command in (["python", "-m", "runnel"], ["other"]):
        configure("codex", command)
        written = path.read_text()
        assert_rest(written, text)
        entry = tomllib.loads(written)["mcp_servers"][NAME]
        assert entry == {"command": command[0], "args": command[1:]}
    configure("codex", None)
    assert_rest(path.read_text(), text)
    assert NAME not in tomllib.loads(path.read_text()).get("mcp_servers", {})


@pytest.fixture
def home(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "project").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CODEX_HOME", raising=False)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "home"


def entry_of(program):
    path = Path(PROGRAMS[program][0]).expanduser()
    text = path.read_text(encoding="utf-8")
    content = tomllib.loads(text) if path.suffix == ".toml" else _load_json(text)
    return path, content.get(PROGRAMS[program][1], {}).get(NAME)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_documented_configuration_is_written_and_taken_out(run, home, program):
    done = run("mcp", "--install", program, "--in", "library", "-m", "tiny")
    path, entry = entry_of(program)
    assert (done.code, done.out) == (0, f"{path.resolve()}\n")
    assert (entry.get("type") == "stdio") == (program == "vscode")
    assert entry["command"] == sys.executable and entry["args"][:3] == ["-m", "runnel", "mcp"]
    for part in (str(Path.cwd()), str(Path.cwd() / "library"), "tiny"):
        assert part in entry["args"]
    assert run("mcp", "--uninstall", program).code == 0 and entry_of(program)[1] is None
    assert run("mcp", "--uninstall", program).code == 0
    assert run("mcp", "--uninstall", program, "--install", program).code == 2


@pytest.mark.anyio
@pytest.mark.slow
async def test_the_command_that_is_written_starts_the_server(run, home):
    Path("a.md").write_text("The dog barked.")
    assert run("mcp", "--install", "claude-code").code == 0
    _, entry = entry_of("claude-code")
    command = StdioServerParameters(**entry, env=dict(os.environ), cwd="/")
    with anyio.fail_after(GIVE_UP_S):
        async with Client(command) as client:
            read = await client.call_tool("read", {"file": "a.md"})
    assert "The dog barked." in read.content[0].text


def test_links_and_modes_stay(run, home):
    target = home / "shared.json"
    target.write_text('{"mcpServers": {"other": {}}}')
    target.chmod(0o640)
    Path(".mcp.json").symlink_to(target)
    assert run("mcp", "--install", "claude-code").code == 0
    assert Path(".mcp.json").is_symlink() and NAME in target.read_text()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert run("mcp", "--uninstall", "claude-code").code == 0
    assert target.read_text() == '{"mcpServers": {"other": {}}}'
    assert sorted(path.name for path in home.iterdir()) == ["shared.json"]


@pytest.mark.parametrize("content", ["", '{"theme": 1}'])
def test_what_another_program_writes_meanwhile_stays(home, monkeypatch, content):
    path = Path(".mcp.json").resolve()
    path.write_text(content)
    write = Path.write_bytes

    def write_after_another(partial, data):
        path.write_text('{"theme": 2}')
        write(partial, data)

    monkeypatch.setattr(Path, "write_bytes", write_after_another)
    with pytest.raises(InputError, match=rf"{path} has just been changed.*repeat"):
        configure("claude-code", ["runnel"])
    assert path.read_text() == '{"theme": 2}' and list(path.parent.glob(".mcp*")) == [path]


DAMAGED_JSON = [
    b'{"KEY": {',
    b"[]",
    b"null",
    b'"KEY"',
    b'{"KEY": []}',
    b'{"KEY": null}',
    b'{"KEY": "none"}',
    b'{"KEY": {}} {}',
    b'{"KEY": {"runnel": 1, "runnel": 2}}',
    b'{"KEY": {} "b": 2}',
    b"{'KEY': {}}",
    b'{"KEY": {} /* }',
    b"<<<<<<< HEAD\n{}\n=======\n{}\n>>>>>>> other\n",
    b"\xff\xfe{\x00}\x00",
    b'{"a": "\xe9"}',
    b"{}\0",
    bytes(100),
    b"[" * 100_000,
]
DAMAGED_TOML = [
    b"[KEY\n",
    b'KEY = "none"\n',
    b"KEY = []\n",
    b"[[KEY]]\n",
    b"[KEY.runnel]\n[KEY.runnel]\n",
    b"a = 1\na = 2\n",
    b'a = """\n',
    b'{"KEY": {}}',
    b'a = "\xe9"\n',
    b"a = 1\0\n",
    b"a = " + b"[" * 100_000,
]


@pytest.mark.parametrize(
    ("program", "damaged"),
    [
        (program, damaged.replace(b"KEY", key.encode()))
        for program, (file, key, _) in PROGRAMS.items()
        for damaged in (DAMAGED_TOML if file.endswith(".toml") else DAMAGED_JSON)
    ],
)
def test_a_damaged_configuration_is_refused_and_stays(run, home, program, damaged):
    path = Path(PROGRAMS[program][0]).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(damaged)
    for option in ("--install", "--uninstall"):
        done = run("mcp", option, program)
        assert done.code == 1 and done.out == "" and done.err.count("\n") == 1
        assert str(path.resolve()) in done.err and "nothing was written" in done.err
        assert path.read_bytes() == damaged and list(path.parent.iterdir()) == [path]


def test_what_may_not_change_does_not_change(home):
    """A read-only file, a circle of links, and no entry to take out."""
    for program in PROGRAMS:
        path = configure(program, None)
        assert not path.exists() and not path.parent.joinpath(path.name).exists()
    path = Path(".mcp.json")
    path.write_text('{"theme": 1}')
    path.chmod(0o444)
    with pytest.raises(InputError, match="read-only"):
        configure("claude-code", ["runnel"])
    assert path.read_text() == '{"theme": 1}' and configure("claude-code", None) == path.resolve()
    path.unlink()
    path.symlink_to(path.name)
    with pytest.raises(InputError, match=r"circle|loop"):
        configure("claude-code", ["runnel"])
    assert path.is_symlink()
