"""Rules of CONTRIBUTING: a layer imports only itself and layers below it; letters and papers
are explained in docs/contributing.md."""

import ast
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "runnel"

# What each part of the package may import beside itself. `runnel/__init__.py` names everything,
# lazily.
ALLOWED = {
    "redaction": set(),
    "errors": {"redaction"},
    "formats": set(),
    "batching": set(),
    "checks": {"errors"},
    "records": {"errors", "checks", "formats"},
    "config": {"errors"},
    "hardware": {"errors"},
    "files": {"errors"},
    "journal": {"errors", "files"},
    "ops": {"errors", "batching", "checks", "records", "hardware"},
    "text": {"errors", "formats", "batching", "checks", "records", "config", "files"},
    "backbones": {"redaction", "errors", "checks", "records", "config", "hardware", "files", "ops"},
    "planning": {"errors", "checks", "records", "hardware", "ops", "backbones"},
    "request": {"errors", "checks", "records", "hardware", "ops", "backbones"},
    "engine": {
        "errors",
        "checks",
        "records",
        "config",
        "hardware",
        "ops",
        "backbones",
        "planning",
        "request",
    },
}
ALLOWED["models"] = set(ALLOWED)
ALLOWED["search"] = set(ALLOWED)
ALLOWED["integrations"] = set(ALLOWED)
ALLOWED["generation"] = set(ALLOWED)
ALLOWED["jobs"] = set(ALLOWED)
ALLOWED["server"] = set(ALLOWED)
ALLOWED["agents"] = set(ALLOWED)
BELOW = set(ALLOWED)
ALLOWED |= {name: BELOW | {"commands"} for name in ("commands", "cli")}
# and no other part imports it: `cli` has the names of its commands
ALLOWED["lab"] = BELOW
ALLOWED["lab/commands"] = BELOW | {"lab", "commands"}
ALLOWED["__main__"] = {"cli"}

# Packages that only these places may import; elsewhere they would slow down or break what does not
# need them.
ONLY_IN = {
    "typer": {"cli", "commands", "lab/commands"},
    "rich": {"commands"},
    "numba": {"ops", "backbones", "jobs", "text"},
    "huggingface_hub": {"backbones", "models", "lab"},
    "sentencex": {"text"},
    "tokenizers": {"text", "models"},
    "transformers": {"backbones", "lab", "commands", "lab/commands"},
    "sentence_transformers": {"backbones", "lab", "integrations"},
    "lancedb": {"search"},
    "qdrant_client": {"search"},
    "langchain_core": {"integrations"},
    "llama_index": {"integrations"},
    "haystack": {"integrations"},
    "openai": {"generation"},
    "py3langid": {"lab"},
    "ray": {"integrations"},
    "mteb": {"integrations", "lab"},
    "fastapi": {"server"},
    "starlette": {"server"},
    "uvicorn": {"server", "agents"},
    "mcp": {"agents"},
    "tomlkit": {"agents"},
}
FILES = sorted(p for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py")


def part_of(names: Sequence[str]) -> str:
    """The part of the package that a file is in, from the names of its folders and its own."""
    return "lab/commands" if [*names[:2]] == ["lab", "commands"] else names[0]


def part(path: Path) -> str:
    return part_of(path.relative_to(SOURCE).with_suffix("").parts)


def imports(path: Path, *, inside_functions: bool = True) -> set[str]:
    """Dotted names of every module that the file imports."""
    names = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if inside_functions else tree.body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, (
                f"{path} line {node.lineno}: relative import; write the full name"
            )
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_imports_go_down():
    wrong = []
    for path in FILES:
        mine = part(path)
        assert mine in ALLOWED, f"{path}: a new part of the package; give it a place in ALLOWED"
        for name in sorted(imports(path)):
            top, *rest = name.split(".")
            below = (
                top != "runnel"
                or not rest
                or rest[0] not in ALLOWED
                or part_of(rest) in {mine, *ALLOWED[mine]}
            )
            if (
                not below
                or top in {"tests", "benchmarks", "examples", "tools"}
                or mine not in ONLY_IN.get(top, {mine})
            ):
                wrong.append(f"{path.relative_to(SOURCE)} must not import {name}")
    assert not wrong and {part(path) for path in FILES} == set(ALLOWED)


# What writes to the terminal; other code returns results, logs, or reports progress to
# `runnel.jobs.progress`.
SHOWING = {"cli", "__main__", "commands", "lab/commands"}
STREAMS = {"sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"}


def test_only_commands_print():
    wrong = []
    for path in FILES:
        if part(path) not in SHOWING:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                name = ast.unparse(node.func if isinstance(node, ast.Call) else node)
                if (isinstance(node, ast.Call) and name in ("print", "say")) or name in STREAMS:
                    wrong.append(f"{path.relative_to(SOURCE)}, line {node.lineno}: {name}")
    assert not wrong


@pytest.mark.parametrize("inside_functions", [False, True])
def test_no_import_circles(inside_functions):
    """No files import each other in a circle: neither when they are imported, nor later, in
    functions and types.
    """
    modules = {
        "runnel."
        + ".".join(p.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): p
        for p in FILES
    }
    left = {}
    for module, path in modules.items():
        needs = imports(path, inside_functions=inside_functions)
        left[module] = (needs & set(modules)) - {module}
    while free := [m for m, needs in left.items() if not needs & set(left)]:
        for module in free:
            del left[module]
    assert not left, f"import circle among {sorted(left)}"


def test_class_names_are_unique():
    """But parts that operators and backbones have alike, and adapters for several libraries."""
    shared = {"Buffers", "Gradients", "Inputs", "Shape", "RunnelRetriever", "RunnelSentences"}
    shared |= {"RunnelVectorStore"}
    shared |= {"Document"}  # of a user, and in the second look
    # heads with weights of torch and of arrays
    shared |= {"TokenFeatures", "EndVector", "FirstVector", "PlainMeanVector"}
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in FILES)
    names = [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    public = Counter(name for name in names if not name.startswith("_"))
    assert {name for name, count in public.items() if count > 1} <= shared


def test_long_lived_variables_say_what_they_hold():
    """`one`, `found`, `facts` and `parts` are names for a few lines."""
    for path in FILES:
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                names = [
                    (node.id, node.lineno)
                    for node in ast.walk(function)
                    if isinstance(node, ast.Name)
                ]
                for vague in ("one", "found", "facts", "parts"):
                    lines = [line for name, line in names if name == vague]
                    assert not lines or max(lines) - min(lines) < 16, (
                        f"{path}: {vague} in {function.name}"
                    )


PAGE = (ROOT / "docs/contributing.md").read_text(encoding="utf-8")
EXPLAINED = {
    name for row in re.findall(r"^\| ([\w, ]+) \|", PAGE, re.MULTILINE) for name in row.split(", ")
}
LEGEND = re.compile(
    r"(?:^ {4}|  +|, )([A-Za-z][a-z]?)(?=  +\w|, [A-Z][a-z]?  +\w| += | \w+, a multiple)"
)


def legends() -> dict[str, set[str]]:
    """Letters by file, from lines such as `    T  tokens   S  sequences`."""
    found = {}
    for path in (ROOT / "src/runnel").rglob("*.py"):
        lines = (
            ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False) or ""
        ).splitlines()
        letters = {
            letter
            for line in lines
            if re.match(r" {4}[A-Za-z][a-z]?  +\w", line)
            for letter in LEGEND.findall(line)
        }
        if letters:
            found[path.relative_to(ROOT).as_posix()] = letters
    return found


def test_every_letter_of_a_legend_is_explained():
    """docs/contributing.md has every letter that a legend at the top of a file explains."""
    found = legends()
    assert len(found) > 15 and found["src/runnel/backbones/mamba1/kernels.py"] == {
        *"STRLNwWG",
        "Di",
    }
    assert {
        file: letters - EXPLAINED for file, letters in found.items() if letters - EXPLAINED
    } == {}


def test_every_paper_is_named():
    called = set()
    for path in (*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").glob("*.md")):
        called |= set(re.findall(r"\bpaper ([A-Z])\b", path.read_text(encoding="utf-8")))
    rows = dict(re.findall(r"^\| ([A-Z]) \| (.*\*.*\*.*) \|$", PAGE, re.MULTILINE))
    assert called <= set(rows) == set("ABCDE")
