"""The files that a host of the repository reads: workflows, hooks and the citation agree with the Makefile and the package."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
JOBS = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yml").read_text(encoding="utf-8"))["jobs"]


@pytest.mark.parametrize("command", [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step])
def test_workflows_run_targets_of_the_makefile(command):
    subprocess.run([*command.split(), "-n"], cwd=ROOT, check=True, capture_output=True)


def test_workflows_test_the_versions_of_python_that_the_package_names():
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert JOBS["test"]["strategy"]["matrix"]["python"] == named


def test_the_hook_has_the_pinned_ruff():
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert hook["rev"].replace("v", "ruff==") in PROJECT["dependency-groups"]["docs"]


def test_the_citation_is_of_this_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["license"] == PROJECT["project"]["license"] and citation["keywords"] == PROJECT["project"]["keywords"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
