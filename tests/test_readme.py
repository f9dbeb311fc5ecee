"""The README is true: its commands and Python blocks run, show what it says they show, and its links lead somewhere."""

import platform
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from helpers.pages import blocks, commands, missing, printed
from helpers.stub_endpoint import serve

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [(kind, body) for kind, _, body in blocks(README)]
PYTHON = "\n".join(body for kind, body in BLOCKS if kind == "python")
COUNTED = ("info", "embed", "index")  # their numbers are the same on all machines
REFERENCE = "3.11.7"  # the Python whose language reference the README searches
COMMANDS = [pair for kind, body in BLOCKS if kind == "console" for pair in commands(body)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What `make demo` leaves in runs/demo, where the README's commands are to be run."""
    path = tmp_path_factory.mktemp("readme") / "demo"
    shutil.copytree(ROOT / "examples" / "files", path)
    subprocess.run([sys.executable, ROOT / "examples" / "python_reference.py", path / "python-reference.txt"], check=True)
    return path


@pytest.mark.parametrize(("command", "shown"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_command(folder, run, terminal, monkeypatch, command, shown):
    program, *arguments = shlex.split(command)
    assert program == "runnel", "only runnel's own commands are shown as a console"
    monkeypatch.chdir(folder)
    done = run(*arguments)
    assert done.code == 0, done.err
    assert missing(shown.splitlines(), done.out) == [], done.out
    if arguments[0] in COUNTED:
        assert [number for number in re.findall(r"\d[\d,.]*", shown) if number not in done.out] == [], done.out
    timed = "train" in arguments  # prints how long it took
    if not timed and (platform.python_version() == REFERENCE or "python-reference.txt" not in arguments):
        printed_now = numbers(done.out)
        assert [one for one in numbers(shown) if all(abs(one - other) > 0.05 for other in printed_now)] == [], done.out


def numbers(text):
    """Return all numbers; percentages, whose last digit differs between processors, as shares."""
    found = re.findall(r"(-?\d[\d,]*(?:\.\d+)?)( %)?", text)
    return [float(number.replace(",", "")) / (100 if percent else 1) for number, percent in found]


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))])
def test_install_commands_name_the_distribution_and_extras_that_exist(page):
    text, project = (
        page.read_text(encoding="utf-8"),
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"],
    )
    installed = re.findall(r"""["' ]([\w.-]+)\[([a-z,-]+)\]["'`]""", "\n".join(re.findall("pip install.*", text)))
    assert {name for name, _ in installed} <= {project["name"], "."}
    named = {*re.findall(r"extra `([a-z-]+)`", text), *(extra for _, extras in installed for extra in extras.split(","))}
    assert named <= project["optional-dependencies"].keys()


def test_python_blocks(folder):
    """All blocks as one program. A comment `# -> text` after a line that prints is what it prints."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", PYTHON], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert missing(printed(PYTHON), done.stdout) == [], done.stdout


def test_shell_blocks_are_what_the_makefile_does():
    lines = [line for kind, body in BLOCKS if kind == "sh" for line in body.splitlines()]
    assert lines == ["python3 -m venv .venv", ". .venv/bin/activate", "pip install -c constraints.txt -e .", "make demo"]
    makes = subprocess.run(["make", "-n", "demo"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "cp -R examples/files/. runs/demo" in makes


@pytest.mark.parametrize(
    ("target", "installed"),
    [("demo", ["-e ."]), ("docs", ["-e .", "--group docs"]), ("test", ["-e .", "-e '.[$EXTRAS]' --group dev"])],
)
def test_the_makefile_installs_only_what_a_target_needs(tmp_path, target, installed):
    makes = subprocess.run(
        ["make", "-n", target, f"VENV={tmp_path}"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = ",".join(project["optional-dependencies"].keys() - {"all", "gpu"})
    found = re.findall(r"pip install -qq .*-c constraints.txt ((?:-e|--group) .+)", makes)
    assert [sorted(re.split(r"\W+", line)) for line in found] == [
        sorted(re.split(r"\W+", line.replace("$EXTRAS", extras))) for line in installed
    ]


def test_an_answer_of_a_language_model(folder, run, terminal, monkeypatch):
    """The model says what is shown, with the citation that is removed."""
    [(command, shown)] = [pair for kind, body in BLOCKS if kind == "text" for pair in commands(body)]
    monkeypatch.chdir(folder)
    with serve(lambda messages: shown.splitlines()[0].replace(". (no source)", " [7].")) as stub:
        *arguments, url = shlex.split(command)[1:]
        done = run(*arguments, stub.url)
    assert (done.code, done.out.split()) == (3, shown.split()) and url.startswith("http://127.0.0.1")


@pytest.mark.parametrize(
    "line", [line for kind, body in BLOCKS if kind == "text" and "$ " not in body for line in body.splitlines()]
)
def test_commands_that_are_not_run_exist_with_their_options(run, line):
    """Text blocks have commands that do not end, or need what tests do not have."""
    program, name, *arguments = shlex.split(line)
    done = run(name, "--help")
    assert program == "runnel" and done.code == 0, done.err
    assert all(option in done.out for option in arguments if option.startswith("-"))


def test_every_kind_of_block_is_checked():
    assert {kind for kind, _ in BLOCKS} == {"sh", "console", "python", "text"}


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make (\w+)`", README + (ROOT / "CONTRIBUTING.md").read_text()))))
def test_make_targets_exist(target):
    subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!http)([^)#]+)\)", README))))
def test_links_lead_somewhere(link):
    assert (ROOT / link).exists()
