"""What importing costs: `import runnel` and `runnel --help` import nothing heavy; every module can be imported by itself;
and the commands need no more than the package's own dependencies."""

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
HEAVY = {"torch", "numpy", "numba", "tokenizers", "safetensors", "huggingface_hub", "sentencex", "transformers"}


def loaded_after(code):
    """Top-level modules in a fresh interpreter after running `code`."""
    program = (
        f"import sys\n{code}\nsys.stdout.write('\\nMODULES ' + ' '.join(sorted({{m.partition('.')[0] for m in sys.modules}})))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("MODULES ")[2].split())


def test_import_runnel_imports_nothing_heavy():
    loaded = loaded_after("import runnel; runnel.Sentence; runnel.RunnelError")
    assert not loaded & (HEAVY | {"rich", "typer"})


@pytest.mark.parametrize("arguments", [["--help"], ["find", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments):
    code = f"""
sys.argv = ['runnel', *{arguments!r}]
from runnel.cli import main
try:
    main()
except SystemExit as end:
    assert end.code == 0
"""
    assert not loaded_after(code) & HEAVY


@pytest.mark.parametrize("model", ["pocket", "pocket-mamba2"])
def test_loading_a_model_does_not_import_what_torch_itself_leaves_out(model):
    """torch's Python code for meta tensors imports sympy: half of the time of a first load."""
    assert "sympy" not in loaded_after(f"import runnel; runnel.SentenceRetriever.load({model!r})")


def test_records_and_errors_are_light():
    assert not loaded_after("import runnel.records, runnel.errors") & HEAVY


def test_reading_files_needs_no_torch():
    assert "torch" not in loaded_after("import runnel.text.documents.reader, runnel.commands.rows")


@pytest.mark.slow
def test_every_module_imports_alone():
    """In one fresh interpreter, from the last to the first, so that no module leans on another having been imported."""
    paths = (SOURCE / "runnel").rglob("*.py")
    needs = {"gpu.py": "triton", "gpu_kernels.py": "triton"}  # imported when a GPU kernel is to run
    paths = [path for path in paths if path.name not in needs or importlib.util.find_spec(needs[path.name])]
    modules = sorted(".".join(p.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for p in paths)
    loaded_after("import importlib\n" + "\n".join(f"importlib.import_module({m!r})" for m in reversed(modules)))


def distributions_of(requirements):
    """Canonical names of the installed distributions that these requirements bring, without extras."""
    names, waiting = set(), [Requirement(line) for line in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in names and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
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
    base = distributions_of(tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]["dependencies"])
    hidden = {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if module != "runnel" and not base & {canonicalize_name(owner) for owner in owners}
    }
    assert {"transformers", "lancedb", "pypdfium2"} & hidden and not hidden & {"torch", "typer", "yaml"}
    (tmp_path / "a.txt").write_text("One dog barked.\nOne cat slept.\n")
    commands = (["find", "dog", "a.txt"], ["embed", "a.txt", "--to", "a.npy"], ["rerank", "dog", "a.txt"], ["info", "pocket"])
    code = f"""
HIDDEN = {sorted(hidden)!r}
{HIDE}
from runnel.cli import main
for arguments in {commands!r}:
    sys.argv = ['runnel', *arguments]
    try:
        main()
    except SystemExit as end:
        assert not end.code, arguments
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
