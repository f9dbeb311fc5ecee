"""Install the package with its base dependencies alone, and print what each costs as the table of
docs/quickstart.md.

    python -m tools.install_cost FOLDER

FOLDER must not exist; the environment stays there. Versions are those of constraints.txt. Sizes are
of installed files, with the bytecode that pip compiles. An import is timed in a new process, with
everything that it imports: the shortest of five interleaved runs, compared with numba's.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import venv
from pathlib import Path

from runnel.errors import DISTRIBUTION

ROOT = Path(__file__).parents[1]
MODULES = {DISTRIBUTION: "runnel", "pyyaml": "yaml"}  # named otherwise than their distribution
ROUNDS = 5

SIZES = """
import importlib.metadata as m
from packaging.requirements import Requirement
for d in m.distributions():
    size = sum(f.locate().stat().st_size for f in d.files or () if f.locate().is_file())
    needs = [Requirement(line) for line in d.requires or ()]
    now = [n.name for n in needs if n.marker is None or n.marker.evaluate({"extra": ""})]
    print(d.name, d.version, size, *now)
"""


def install(folder: Path) -> tuple[Path, float]:
    """Return the environment's Python and the seconds of `pip install` with the wheel."""
    wheels = folder / "wheel"
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)],
        cwd=ROOT,
        check=True,
    )
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    (wheel,) = wheels.glob("*.whl")
    start = time.perf_counter()
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "-q",
        "--no-cache-dir",
        "-c",
        str(ROOT / "constraints.txt"),
        str(wheel),
    ]
    subprocess.run(command, check=True)
    return python, time.perf_counter() - start


def import_seconds(python: Path, module: str) -> float:
    """Return the time that `import module` takes in a new process, as -X importtime measures it."""
    command = [str(python), "-X", "importtime", "-c", f"import {module}"]
    report = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    times = re.findall(
        rf"^import time:\s*\d+ \|\s*(\d+) \| {re.escape(module)}$", report, re.MULTILINE
    )
    return int(times[-1]) / 1e6


def canonical(name: str) -> str:
    """Return the one spelling of a distribution's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Print the table and the totals."""
    python, seconds = install(Path(sys.argv[1]).absolute())
    lines = subprocess.run(
        [python, "-c", SIZES], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    rows = {
        canonical(name): (version, int(size), needs)
        for name, version, size, *needs in map(str.split, lines)
    }
    direct = [canonical(name) for name in rows[DISTRIBUTION][2]]
    names = [DISTRIBUTION, *sorted(direct, key=lambda name: -rows[name][1])]
    modules = {name: MODULES.get(name, name.replace("-", "_")) for name in names}
    rounds = [
        {name: import_seconds(python, modules[name]) for name in names} for _ in range(ROUNDS)
    ]
    times = {name: min(times[name] for times in rounds) for name in names}
    others = rows.keys() - set(names) - {"pip", "setuptools"}
    print("| distribution | version | MB | import, numba = 1 |\n| --- | --- | --- | --- |")
    for name in names:
        print(
            f"| {name} | {rows[name][0]} | {rows[name][1] / 1e6:.1f} |"
            f" {times[name] / times['numba']:.2f} |"
        )
    print(
        f"| {len(others)} that these need | | {sum(rows[name][1] for name in others) / 1e6:.1f} | |"
    )
    print(f"| all | | {sum(rows[name][1] for name in [*names, *others]) / 1e6:.1f} | |")
    print(
        f"\npip install: {seconds:.0f} s; import numba: {times['numba']:.2f} s; largest of the"
        " others: ",
        end="",
    )
    print(
        ", ".join(
            f"{name} {rows[name][1] / 1e6:.1f} MB"
            for name in sorted(others, key=lambda name: -rows[name][1])[:4]
        )
    )


if __name__ == "__main__":
    main()
