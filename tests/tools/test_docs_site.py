"""The site of the docs, built as `make docs` builds it, with warnings as errors, and the page that
a script writes.
"""

import html
import re
from pathlib import Path

import pytest
from helpers.children import run_python

import runnel
from runnel.cli import COMMANDS, LAB
from tools import docs_site
from tools import scale_arithmetic as scale

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = sorted(page.name for page in (ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = ["-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    run_python(*command, cwd=ROOT, NO_MKDOCS_2_WARNING="1")
    return folder


def text_of(page):
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def test_every_page_is_built_and_listed(site):
    listed = re.findall(
        r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    )
    assert sorted(["README.md", *listed]) == PAGES
    assert (
        all((site / name).with_suffix(".html").exists() for name in listed)
        and (site / "index.html").exists()
    )


@pytest.mark.parametrize(
    "command", [*(name for name in COMMANDS if name != "lab"), *(f"lab {name}" for name in LAB)]
)
def test_the_page_of_commands_has_what_help_prints(site, run, terminal, command):
    _, _, section = docs_site.commands_page().partition(f"\n## {command}\n")
    section = html.unescape(section.partition("\n## ")[0])
    options = set(re.findall(r"(?<![\w-])--\w[\w-]*", run(*command.split(), "--help").out)) - {
        "--help"
    }
    assert options and {option for option in options if option not in section} == set()
    assert f'id="{command.replace(" ", "-")}"' in (site / "reference" / "commands.html").read_text(
        encoding="utf-8"
    )


def test_the_page_of_names_has_those_of_the_package_and_of_the_pages(site):
    page = (site / "reference" / "python.html").read_text(encoding="utf-8")
    names = {
        *(f"runnel.{name}" for name in runnel.__all__),
        "runnel.Embedder.encode",
        "runnel.errors.StoreBusy",
        "runnel.Index.search",
        "runnel.search.project.Project.update",
        "runnel.text.documents.reader.read_document",
    }
    assert {name for name in names if f'id="{name}"' not in page} == set()
    # docstrings with what they raise
    assert "the query is empty" in text_of(site / "reference" / "python.html")


def test_files_that_pages_link_to_are_on_the_site_and_nothing_of_other_hosts(site):
    assert 'href="repository/examples/finetune_pairs.py.html"' in (
        site / "training.html"
    ).read_text(encoding="utf-8")
    example = (ROOT / "examples" / "finetune_pairs.py").read_text(encoding="utf-8")
    assert example.strip() in text_of(site / "repository" / "examples" / "finetune_pairs.py.html")
    recipes = text_of(site / "repository" / "src" / "runnel" / "lab" / "training" / "recipes.html")
    assert "pairs.toml" in recipes and "evidence-vectors.toml" in recipes
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    loaded = re.compile(r'<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)="?(?:https?:)?//')
    assert [page for page in pages if loaded.search(page.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("name", ["plan", "storage"])
def test_the_page_of_scale_has_the_tables_of_its_script(name):
    (found,) = re.findall(
        rf"(?s)<!-- {name} -->\n(.*?)\n<!-- end -->", scale.PAGE.read_text(encoding="utf-8")
    )
    assert found == getattr(scale, name)(), "run python -m tools.scale_arithmetic --write"
