"""What importing costs: `import runnel` and `runnel --help` import nothing heavy; every module can be imported by itself."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_records_and_errors_are_light():
    assert not loaded_after("import runnel.records, runnel.errors") & HEAVY


def test_reading_files_needs_no_torch():
    assert "torch" not in loaded_after("import runnel.text.documents.reader, runnel.commands.rows")


def test_every_module_imports_alone():
    """In one fresh interpreter, from the last to the first, so that no module leans on another having been imported."""
    paths = (SOURCE / "runnel").rglob("*.py")
    if not importlib.util.find_spec("triton"):  # an optional dependency; nothing imports these unless a GPU kernel is to run
        paths = (p for p in paths if p.name not in ("gpu.py", "gpu_kernels.py", "triton_math.py"))
    modules = sorted(".".join(p.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for p in paths)
    loaded_after("import importlib\n" + "\n".join(f"importlib.import_module({m!r})" for m in reversed(modules)))
