"""The container recipe, as far as it can be checked without building it: its files, its user, and its commands, which are run."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from helpers.children import PATHS
from helpers.waiting import GIVE_UP_S

from runnel.commands.serve import serve

ROOT = Path(__file__).parents[1]
LINES = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
STEPS = [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in LINES) if name.isupper()]
PORT = "8675"


def arguments(instruction: str) -> list[str]:
    return [rest for name, rest in STEPS if name == instruction]


def test_the_package_is_built_from_what_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    copied = [word for rest in arguments("COPY") if "--from" not in rest for word in shlex.split(rest)[:-1]]
    admitted = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.startswith("!")}
    assert admitted == set(copied) == {"pyproject.toml", "constraints.txt", "src", project["readme"], *project["license-files"]}
    (extras,) = re.findall(r"\.\[(.*)\]", "\n".join(arguments("RUN")))
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    versions = {re.search(r"3\.\d+", rest).group() for rest in arguments("FROM")}
    assert {f"Programming Language :: Python :: {version}" for version in versions} <= set(project["classifiers"])


def test_it_runs_as_a_user_without_rights_who_writes_in_the_volume_alone() -> None:
    names = [name for name, _ in STEPS]
    assert arguments("USER") == ["runnel"]
    assert names.index("USER") > max(i for i, name in enumerate(names) if name in ("RUN", "COPY"))
    (volume,) = arguments("VOLUME")
    written = [part.partition("=")[2] for part in shlex.split(arguments("ENV")[0]) if not part.startswith("PATH=")]
    assert written
    assert all(path.startswith(f"{volume}/") for path in written)


@pytest.mark.skipif(sys.platform == "win32", reason="the processes are ended by signals")
@pytest.mark.slow
def test_the_server_starts_with_the_command_and_the_health_check_reaches_it(tmp_path: Path) -> None:
    command, check = json.loads(arguments("ENTRYPOINT")[0]), json.loads(arguments("HEALTHCHECK")[0].partition("CMD ")[2])
    assert (command[0], check[0]) == ("runnel", "python")
    assert arguments("EXPOSE") == [PORT] == [str(inspect.signature(serve).parameters["port"].default)]
    environment = os.environ | PATHS | {"RUNNEL_API_KEY": "a key of the test"}
    server = subprocess.Popen(
        [sys.executable, "-m", *command, "--port", "0"], env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        port = next(
            found.group(1) for line in server.stderr if (found := re.search(r"serving pocket at http://0\.0\.0\.0:(\d+)", line))
        )
        for place, code in ((port, 0), ("9", 1)):  # nothing listens on port 9
            done = subprocess.run(
                [sys.executable, *check[1:-1], check[-1].replace(PORT, place)], capture_output=True, check=False
            )
            assert done.returncode == code, done.stderr
    finally:
        server.terminate()
        server.communicate(timeout=GIVE_UP_S)
    assert server.returncode == 0
