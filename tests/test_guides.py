"""The README and the guides are true: their blocks run, in order, and print what is shown;
commands, extras and links exist.
"""

import contextlib
import io
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import typer
from helpers.document_files import pdf
from helpers.files import write_files
from helpers.pages import blocks, commands, missing, printed
from helpers.stub_endpoint import serve

from runnel import Embedder, Engine, Request
from runnel.cli import COMMANDS, LAB, app, lab

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDES = ("README", "quickstart", "how-it-works", "embed", "integrations", "search", "documents")
REFERENCE = "python-reference.txt"  # of Python 3.11.7 in the README
ROW = '{"id": "1", "text": "The board approved the budget."}\n'
# The files and names that the blocks of a page suppose; without an entry, the files of
# examples/files.
FILES = {
    "search": {
        "notes.jsonl": ROW,
        "reports/2024.md": "# Budget\n\nThe board approved the budget in March.\n",
    },
    "documents": {"rows.jsonl": ROW, "report.pdf": pdf([["The tenant pays the rent."]])},
    "embed": {
        "corpus.jsonl": ROW + ROW.replace("1", "2").replace("budget", "plan"),
        "queries.jsonl": ROW,
    },
}
NAMES = {"search": {"text": "The board met in March."}}


def page(name):
    """Return a page; of integrations.md the last section, as tests/integrations/test_documented.py
    runs the others.
    """
    text = README if name == "README" else (DOCS / f"{name}.md").read_text(encoding="utf-8")
    return text[text.rindex("\n## ") :] if name == "integrations" else text


def call(run, command):
    program, *arguments = shlex.split(command, comments=True)
    assert program == "runnel"
    return run(*arguments).ok().out


def numbers(text):
    """Return all numbers; percentages, whose last digit differs between processors, as shares."""
    found = re.findall(r"(-?\d[\d,]*(?:\.\d+)?)( %)?", text)
    return [float(number.replace(",", "")) / (100 if percent else 1) for number, percent in found]


def execute(program, name, names):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(program, name, "exec", dont_inherit=True), names)
    assert missing(printed(program), out.getvalue()) == [], out.getvalue()


def run_block(run, name, language, body, names):
    """Run a block; those of text are not run. The numbers of training have its time among them."""
    if language == "python":
        execute(body.replace(REFERENCE, "part.txt"), name, names)
    shown = commands(body) if language == "console" else []
    if language == "sh":
        shown = [(line, "") for line in body.splitlines() if line.startswith("runnel ")]
    for command, output in shown:
        printed_now = call(run, command)
        assert missing(output.splitlines(), printed_now) == [], printed_now
        if " train " not in command and (
            REFERENCE not in command or platform.python_version() == "3.11.7"
        ):
            near = numbers(printed_now)
            assert [
                one for one in numbers(output) if all(abs(one - other) > 0.05 for other in near)
            ] == [], printed_now


def run_new_line(run, folder, line, names):
    """Run a line of a table headed "you write"."""
    if line.startswith("cat "):
        assert (folder / line.removeprefix("cat ")).stat().st_size
    elif not line.startswith("runnel "):
        execute(line, line, names)
    elif not line.startswith("runnel lab train "):  # the quickstart trains
        call(run, line)


@pytest.mark.parametrize("name", GUIDES)
def test_blocks(tmp_path, run, terminal, name):
    """Named blocks are files. The tables of a section come after its blocks."""
    if name not in FILES:
        shutil.copytree(ROOT / "examples" / "files", tmp_path, dirs_exist_ok=True)
    if name == "README":
        subprocess.run(
            [sys.executable, ROOT / "examples" / "python_reference.py", tmp_path / REFERENCE],
            check=True,
        )
        text = (tmp_path / REFERENCE).read_text(encoding="utf-8")
        # with the answers; Python would read all of it for 25 s
        write_files(tmp_path, {"part.txt": text[200_000:250_000]})
    write_files(tmp_path, FILES.get(name, {}))
    names = {"__name__": "__main__", **NAMES.get(name, {})}
    for section in re.split(r"^(?=## )", page(name), flags=re.M):
        for language, file, body in blocks(section):
            if file:
                write_files(tmp_path, {file: body})
            else:
                run_block(run, name, language, body, names)
        for line in new_lines(section):
            run_new_line(run, tmp_path, line, names)


def new_lines(section):
    """Yield the code in the right column of tables from other libraries."""
    for table in re.findall(r"^\| you wrote.*\| you write \|\n\|.*\n((?:\|.*\n)+)", section, re.M):
        for row in table.splitlines():
            code = re.findall(r"`([^`]+)`", row.split(" | ")[-1])
            assert code, row
            yield from (one for one in code if not one.startswith("--"))


def test_every_kind_of_block_and_the_tables_from_other_tools_are_checked():
    assert {kind for name in GUIDES for kind, file, _ in blocks(page(name)) if not file} <= {
        "python",
        "console",
        "sh",
        "text",
    }
    assert len([*new_lines(page("integrations"))]) > 25


def test_an_answer_of_a_language_model(run, tmp_path, terminal):
    """The model says what the README shows, with the citation that is removed."""
    shutil.copytree(ROOT / "examples" / "files", tmp_path, dirs_exist_ok=True)
    [(command, shown)] = [
        pair for kind, _, body in blocks(README) if kind == "text" for pair in commands(body)
    ]
    with serve(lambda messages: shown.splitlines()[0].replace(". (no source)", " [7].")) as stub:
        *arguments, url = shlex.split(command)[1:]
        done = run(*arguments, stub.url)
    assert (done.code, done.out.split()) == (3, shown.split()) and url.startswith(
        "http://127.0.0.1"
    )


def test_the_figure_of_the_engine_is_what_the_engine_does(monkeypatch):
    """Texts of the lengths that the page names are read in the steps that the figure shows."""
    figure = (DOCS / "figures" / "engine.svg").read_text(encoding="utf-8")
    steps = [
        {
            name: int(tokens.replace(",", ""))
            for name, tokens in re.findall(r">([ABC]) ([\d,]+)<", step)
        }
        for step in re.findall(r'<g id="step-\d">(.*?)</g>', figure, re.S)
    ]
    lengths = {name: sum(step.get(name, 0) for step in steps) for name in "ABC"}
    assert "In the figure A has {A:,} tokens, B {B} and C {C}.".format(**lengths) in page(
        "how-it-works"
    )
    backbone = Embedder.load("pocket-mamba2").model.backbone
    read = []

    def step(ids, cu_seqlens, *rest):
        read.append(cu_seqlens.diff().tolist())
        return torch.zeros(len(ids), backbone.hidden_size)

    monkeypatch.setattr(backbone, "step", step)
    Engine(backbone, step_tokens=1024).run(
        [Request(torch.ones(length, dtype=torch.int64).numpy()) for length in lengths.values()]
    )
    assert read == [list(step.values()) for step in steps]


OPTIONS = {
    f"{above}{name}": {
        option for one in command.params for option in (*one.opts, *one.secondary_opts)
    }
    | {"--help"}
    for above, group, names in (("", app, COMMANDS), ("lab ", lab, LAB))
    for name in names
    for command in [typer.main.get_command(group).get_command(None, name)]
}
PAGES = [*sorted(DOCS.glob("*.md")), ROOT / "README.md"]


def mentions(text):
    """Yield the words of each command of runnel that a page has in a block or in its text."""
    code = [
        line
        for language, _, body in blocks(text)
        for line in body.replace("\\\n", " ").splitlines()
        if language != "python"
    ]
    code += re.findall(r"`(runnel [^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    for line in code:
        for command in re.findall(r"(?:^|\| |\$ |&& |-m |-I\{\} )(?=runnel \w)([^|>#&;]+)", line):
            _, name, *arguments = command.split()
            yield [f"lab {arguments.pop(0)}" if name == "lab" and arguments else name, *arguments]


def test_commands_that_pages_mention_exist_with_their_options():
    named = [
        (page, *words) for page in PAGES for words in mentions(page.read_text(encoding="utf-8"))
    ]
    assert len(named) > 200
    for page, command, *arguments in named:
        options = {
            one.partition("=")[0].rstrip(".,)")
            for one in arguments
            if re.match(r"--?[a-zA-Z]", one)
        }
        assert command in ("COMMAND", "...", "lab COMMAND") or options <= OPTIONS[command], (
            f"{page}: runnel {command} {' '.join(arguments)}"
        )


# ---- what pages name -----------------------------------------------------------------------------


def dry_run(*arguments):
    """Return what make would run."""
    return subprocess.run(
        ["make", "-n", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def test_install_commands_name_the_distribution_and_extras_that_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for one in (*PAGES, ROOT / "CONTRIBUTING.md"):
        text = one.read_text(encoding="utf-8")
        installed = re.findall(
            r"""["' ]([\w.-]+)\[([a-z,-]+)\]["'`]""", "\n".join(re.findall("pip install.*", text))
        )
        assert {name for name, _ in installed} <= {project["name"], "."}, one
        named = {
            *re.findall(r"extra `([a-z-]+)`", text),
            *(extra for _, extras in installed for extra in extras.split(",")),
        }
        assert named <= project["optional-dependencies"].keys(), one


def test_shell_blocks_targets_and_files_that_the_readme_names_exist():
    lines = [line for kind, _, body in blocks(README) if kind == "sh" for line in body.splitlines()]
    assert lines == [
        "python3 -m venv .venv",
        ". .venv/bin/activate",
        "pip install -c constraints.txt -e .",
        "make demo",
    ]
    assert "cp -R examples/files/. runs/demo" in dry_run("demo")
    for target in set(
        re.findall(r"`make (\w+)`", README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    ):
        dry_run(target)
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links and [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize(
    ("target", "installed"),
    [
        ("demo", ["-e ."]),
        ("docs", ["-e .", "--group docs"]),
        ("test", ["-e .", "-e '.[$EXTRAS]' --group dev"]),
    ],
)
def test_the_makefile_installs_only_what_a_target_needs(tmp_path, target, installed):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = ",".join(project["optional-dependencies"].keys() - {"all", "gpu"})
    found = re.findall(
        r"pip install -qq .*-c constraints.txt ((?:-e|--group) .+)",
        dry_run(target, f"VENV={tmp_path}"),
    )
    assert [sorted(re.split(r"\W+", line)) for line in found] == [
        sorted(re.split(r"\W+", line.replace("$EXTRAS", extras))) for line in installed
    ]
