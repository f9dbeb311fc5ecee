"""The size rules of CONTRIBUTING: short files and short functions, or a reason."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_LINES = {"file": 600, "function": 60}
FILES = [path for folder in ("src", "tools", "benchmarks", "examples", "tests") for path in sorted((ROOT / folder).rglob("*.py"))]


def too_long(source: str) -> Iterator[str]:
    """Functions over the limit, docstring not counted, without a comment above them that begins with `# Long:`."""
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = node.body[0] if ast.get_docstring(node) is not None else None
            length = node.end_lineno - node.lineno + 1 - (docstring.end_lineno - docstring.lineno + 1 if docstring else 0)
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if length > MOST_LINES["function"] and not lines[first - 2].lstrip().startswith("# Long:"):
                yield f"{node.name}: {length} lines"


def test_files_and_functions_are_short():
    found = []
    for path in FILES:
        source = path.read_text(encoding="utf-8")
        if (length := source.count("\n")) > MOST_LINES["file"]:
            found.append(f"{path.relative_to(ROOT)}: {length} lines")
        found += [f"{path.relative_to(ROOT)}, {one}" for one in too_long(source)]
    assert found == []
