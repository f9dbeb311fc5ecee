"""What others install and what a host reads: all files of the package and no others, the same bytes
from the same sources; workflows, hooks and a citation that agree with the Makefile and the package;
and the container recipe."""

import hashlib
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from helpers.children import server
from helpers.document_files import pdf

from runnel.commands.serve import serve

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in (ROOT / ".github" / "workflows").glob("*.yml")
}
WORKFLOW_STEPS = [
    step
    for workflow in WORKFLOWS.values()
    for job in workflow["jobs"].values()
    for step in job["steps"]
]
# the package, in the sources
BESIDE = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore"}


def tracked() -> set[str]:
    done = subprocess.run(
        ["git", "ls-files", "src/runnel"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("this is not a git checkout")
    return {name for name in done.stdout.splitlines() if (ROOT / name).exists()}


def build(target: str, source: Path, to: Path, **environment: str) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(to)],
        cwd=source,
        env=os.environ | environment,
        check=True,
        capture_output=True,
        text=True,
    )
    (built,) = to.iterdir()
    return built


@pytest.mark.parametrize(
    ("builder", "more"), [(WheelBuilder, set()), (SdistBuilder, {"CHANGELOG.md"})]
)
def test_every_file_of_the_package_is_in_it_and_no_other(
    builder: type[WheelBuilder | SdistBuilder], more: set[str]
) -> None:
    names = {file.relative_path for file in builder(str(ROOT)).recurse_included_files()}
    assert names == tracked() | more  # hatchling adds the rest of BESIDE to the sources


@pytest.mark.release
def test_wheels_from_the_tree_and_from_the_sources_have_the_same_bytes(tmp_path: Path) -> None:
    first, second = (
        build("sdist", ROOT, tmp_path / name, SOURCE_DATE_EPOCH="1700000000") for name in "ab"
    )
    assert (
        hashlib.sha256(first.read_bytes()).digest() == hashlib.sha256(second.read_bytes()).digest()
    )
    with tarfile.open(first) as archive:
        archive.extractall(tmp_path, filter="data")
        assert {
            name.partition("/")[2] for name in archive.getnames() if "/src/" not in name
        } == BESIDE
    sources = {"from-tree": ROOT, "from-sources": tmp_path / first.name.removesuffix(".tar.gz")}
    wheels = [
        build("wheel", source, tmp_path / name, SOURCE_DATE_EPOCH="1700000000")
        for name, source in sources.items()
    ]
    assert len({hashlib.sha256(wheel.read_bytes()).digest() for wheel in wheels}) == 1
    with zipfile.ZipFile(wheels[0]) as archive:
        metadata = {name for name in archive.namelist() if not name.startswith("runnel/")}
    info = "runnel_retrieval-0.1.0.dist-info/"
    assert metadata == {
        info + name
        for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    }


@pytest.mark.release
def test_the_installed_wheel_finds_embeds_and_reranks(tmp_path: Path) -> None:
    wheel = build("wheel", ROOT, tmp_path / "dist")
    folder = tmp_path / "installed"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(folder),
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True)
    texts = tmp_path / "texts.txt"
    texts.write_text(
        "A tuple cannot be changed.\nDeletion of a name removes its binding.\n", encoding="utf-8"
    )

    def runnel(*arguments: str) -> str:
        command = [str(folder / "bin" / "runnel"), *arguments]
        environment = os.environ | {"PYTHONPATH": str(folder)}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        ).stdout

    assert "Deletion of a name removes its binding." in runnel(
        "find", "what does deleting a name do", "texts.txt"
    )
    assert "2 vectors of 384 numbers" in runnel("embed", "texts.txt", "--to", "vectors.npy")
    assert runnel("rerank", "what does deleting a name do", "texts.txt").split()[1] == "2"
    # the kernels of this copy were compiled: no other one answered
    assert list(folder.glob("runnel/**/*.nbi"))


@pytest.mark.release
@pytest.mark.network
def test_the_base_is_installed_without_torch_and_finds(tmp_path: Path) -> None:
    wheel = build("wheel", ROOT, tmp_path / "dist")
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = str(environment / "bin" / "python")
    install = ["-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), str(wheel)]
    subprocess.run([python, *install], check=True, capture_output=True)
    has_torch = "import importlib.util as u; print(u.find_spec('torch') is not None)"
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str) -> str:
        return subprocess.run(
            command, cwd=tmp_path, env=alone, check=True, capture_output=True, text=True
        ).stdout

    assert run(python, "-c", has_torch) == "False\n"
    (tmp_path / "a.pdf").write_bytes(pdf([["The tenant pays the rent."]]))
    found = run(str(environment / "bin" / "runnel"), "find", "who pays the rent", "a.pdf")
    assert found == "a.pdf:page 1:The tenant pays the rent.\n"
    site = environment / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    tools = {"pip", "setuptools", "pkg_resources"}  # of the environment itself
    sizes = [
        path.stat().st_size
        for path in site.rglob("*")
        if path.is_file() and path.relative_to(site).parts[0] not in tools
    ]
    assert sum(sizes) < 460e6


@pytest.mark.parametrize(
    "command", sorted({step["run"] for step in WORKFLOW_STEPS if "run" in step})
)
def test_workflows_run_targets_of_the_makefile(command):
    subprocess.run([*command.split(), "-n"], cwd=ROOT, check=True, capture_output=True)


def test_workflows_name_actions_by_their_commits_and_attest_what_they_build():
    actions = [step["uses"] for step in WORKFLOW_STEPS if "uses" in step]
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action) for action in actions)
    release = WORKFLOWS["release"]["jobs"]["build"]
    assert release["permissions"]["attestations"] == release["permissions"]["id-token"] == "write"
    build, attest = (
        next(i for i, step in enumerate(release["steps"]) if text in str(step))
        for text in ("make dist", "attest-build-provenance")
    )
    assert build < attest
    assert all("write" not in str(WORKFLOWS[name]["permissions"]) for name in WORKFLOWS)


@pytest.mark.parametrize("path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")))
def test_issue_templates_have_what_the_host_needs(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.stem != "config":
        assert {"name", "description", "body"} <= form.keys()
        names = [part["id"] for part in form["body"]]
        assert len(names) == len(set(names))
        assert all(part["attributes"]["label"] for part in form["body"])


def test_versions_license_and_keywords_are_those_of_the_package():
    assert WORKFLOWS["checks"]["jobs"]["test"]["strategy"]["matrix"]["python"] == re.findall(
        r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"])
    )
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))[
        "repos"
    ]
    assert hook["rev"].replace("v", "ruff==") in PROJECT["dependency-groups"]["docs"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (
        citation["license"] == PROJECT["project"]["license"]
        and citation["keywords"] == PROJECT["project"]["keywords"]
    )
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


# ---- the container: the image, where docker runs; and the recipe, without building it: its files,
# its user, and its commands, which are run


@pytest.mark.release
@pytest.mark.network
def test_the_container_image_is_built_and_answers() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True).returncode:
        pytest.skip("docker does not run here")

    def run(*command: str) -> str:
        return subprocess.run(
            [docker, *command], check=True, capture_output=True, text=True
        ).stdout.strip()

    run("build", "--tag", "runnel-test", str(ROOT))
    options = ["--detach", "--read-only", "--tmpfs", "/tmp", "--tmpfs", "/cache:uid=10001"]
    container = run("run", *options, "--env", "RUNNEL_API_KEY=k", "runnel-test")
    try:
        ask = "import urllib.request as u; u.urlopen('http://127.0.0.1:8675/ready', timeout=3)"
        for _ in range(60):
            time.sleep(2)
            asked = subprocess.run([docker, "exec", container, "python", "-c", ask])
            if not asked.returncode:
                break
        assert not asked.returncode, run("logs", container)
        assert run("exec", container, "id", "-u") == "10001"
        run("stop", container)
        assert run("inspect", "--format", "{{.State.ExitCode}}", container) == "0"
    finally:
        run("rm", "--force", container)


LINES = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
STEPS = [
    (name, rest.strip())
    for name, _, rest in (line.partition(" ") for line in LINES)
    if name.isupper()
]
PORT = "8675"


def arguments(instruction: str) -> list[str]:
    return [rest for name, rest in STEPS if name == instruction]


def test_the_container_has_what_is_copied_and_a_user_who_writes_in_the_volume_alone() -> None:
    project = PROJECT["project"]
    copied = [
        word
        for rest in arguments("COPY")
        if "--from" not in rest
        for word in shlex.split(rest)[:-1]
    ]
    admitted = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    assert (
        admitted
        == set(copied)
        == {
            "pyproject.toml",
            "constraints.txt",
            "src",
            project["readme"],
            *project["license-files"],
        }
    )
    assert '".[$EXTRAS]"' in "\n".join(arguments("RUN"))
    (extras,) = (rest.partition("=")[2] for rest in arguments("ARG") if rest.startswith("EXTRAS="))
    assert set(extras.split(",")) <= project["optional-dependencies"].keys() - {"recurrent"}
    versions = {re.search(r"3\.\d+", rest).group() for rest in arguments("FROM")}
    assert {f"Programming Language :: Python :: {version}" for version in versions} <= set(
        project["classifiers"]
    )
    names = [name for name, _ in STEPS]
    assert arguments("USER") == ["runnel"]
    assert names.index("USER") > max(i for i, name in enumerate(names) if name in ("RUN", "COPY"))
    (volume,) = arguments("VOLUME")
    written = [
        part.partition("=")[2]
        for part in shlex.split(arguments("ENV")[0])
        if not part.startswith("PATH=")
    ]
    assert written and all(path.startswith(f"{volume}/") for path in written)


@pytest.mark.skipif(sys.platform == "win32", reason="the processes are ended by signals")
@pytest.mark.slow
def test_the_server_starts_with_the_command_and_the_health_check_reaches_it(tmp_path: Path) -> None:
    command = json.loads(arguments("ENTRYPOINT")[0])
    check = json.loads(arguments("HEALTHCHECK")[0].partition("CMD ")[2])
    assert (command[:2], check[0]) == (["runnel", "serve"], "python")
    assert (
        arguments("EXPOSE") == [PORT] == [str(inspect.signature(serve).parameters["port"].default)]
    )
    with server(*command[2:], cwd=tmp_path, RUNNEL_API_KEY="a key of the test") as (_, client):
        for place, code in ((str(client.base_url.port), 0), ("9", 1)):  # nothing listens on port 9
            asked = [sys.executable, *check[1:-1], check[-1].replace(PORT, place)]
            done = subprocess.run(asked, capture_output=True, check=False)
            assert done.returncode == code, done.stderr
