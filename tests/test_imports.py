"""What importing costs: `import runnel` and `runnel --help` import nothing heavy; every module can
be imported by itself; and the commands need no more than the package's own dependencies."""

import contextlib
import importlib.metadata
import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SOURCE = Path(__file__).parent.parent / "src"
HEAVY = {
    "torch",
    "numpy",
    "numba",
    "tokenizers",
    "safetensors",
    "huggingface_hub",
    "sentencex",
    "transformers",
}


COMMAND = """
sys.argv = ['runnel', *{!r}]
from runnel.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, sys.argv
"""


POCKET = """
import runnel, tempfile
model = runnel.SentenceRetriever.load('pocket').model
embedder, reranker, retriever = runnel.Embedder(model), runnel.Reranker(model), runnel.SentenceRetriever(model)
text = 'One dog barked. One cat slept.'
assert embedder.encode_spans(text, [(0, 3)]).shape == (1, 384) and len(embedder.stream().feed(text).embedding()) == 384
assert embedder.model is reranker.model and retriever.retrieve('dog', text)[0].text == 'One dog barked. '
with tempfile.TemporaryDirectory() as folder:
    (hit, _) = reranker.rank('dog', reranker.remember([text, 'A cat.'], folder))
assert hit.id == '0'
"""


def run_python(code, **options):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import runnel; runnel.Sentence; runnel.RunnelError", HEAVY | {"rich", "typer"}),
        ("import runnel.text.documents.reader, runnel.jobs.rows", {"torch"}),
        (
            "import runnel.text.documents.worker",
            HEAVY | {"rich", "typer", "docx", "selectolax", "pypdfium2"},
        ),
        *(
            (COMMAND.format(arguments), HEAVY)
            for arguments in (["--help"], ["find", "--help"], ["--version"])
        ),
        # torch's Python code for meta tensors imports sympy: half of the time of a first load
        ("import runnel; runnel.SentenceRetriever.load('pocket-mamba2')", {"sympy"}),
        (POCKET, {"torch"}),
        (COMMAND.format(["find", "dog", __file__]), {"torch"}),
        (
            "import runnel.lab.training.recipes as recipes; recipes.read('pairs')",
            {"torch", "numpy"},
        ),
    ],
)
def test_what_is_not_imported(code, absent):
    program = (
        f"import sys\n{code}\nprint('\\nMODULES', *{{m.partition('.')[0] for m in sys.modules}})"
    )
    assert not absent.intersection(run_python(program).rpartition("MODULES ")[2].split())


@pytest.mark.slow
def test_every_module_imports_alone():
    """In one fresh interpreter, from the last to the first, so that no module leans on another
    having been imported.
    """
    paths = (SOURCE / "runnel").rglob("*.py")
    needs = {"gpu.py": "triton"}  # imported when a GPU kernel is to run
    paths = [
        path
        for path in paths
        if path.name not in needs or importlib.util.find_spec(needs[path.name])
    ]
    modules = sorted(
        ".".join(p.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for p in paths
    )
    run_python("\n".join(f"import {module}" for module in reversed(modules)))


def distributions_of(requirements):
    """Canonical names of the installed distributions that these requirements
    bring, without extras.
    """
    names, waiting = set(), [Requirement(line) for line in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in names and (
            requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ):
            names.add(name)
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # a platform's own
                waiting += map(Requirement, importlib.metadata.requires(name) or [])
    return names


HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in HIDDEN:
            raise ModuleNotFoundError(f'No module named {name!r} (hidden)', name=name)
sys.meta_path.insert(0, Hidden())
"""


@pytest.mark.slow
def test_base_dependencies_are_enough(tmp_path):
    """`make demo` and the README's first command install nothing else."""
    base = distributions_of(
        tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]["dependencies"]
    )
    hidden = {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if module != "runnel" and not base & {canonicalize_name(owner) for owner in owners}
    }
    assert {"transformers", "lancedb", "pypdfium2"} & hidden and not hidden & {
        "torch",
        "typer",
        "yaml",
    }
    (tmp_path / "a.txt").write_text("One dog barked.\nOne cat slept.\n")
    commands = (
        ["find", "dog", "a.txt"],
        ["embed", "a.txt", "--to", "a.npy"],
        ["rerank", "dog", "a.txt"],
        ["info", "pocket"],
    )
    program = f"HIDDEN = {sorted(hidden)!r}\n{HIDE}\n" + "".join(
        COMMAND.format(arguments) for arguments in commands
    )
    run_python(program, cwd=tmp_path)
