"""No kernel uses an address whose array may have been freed.

numba frees an array after the last use of its name; an address of it does not count. So kernels
take addresses only of what their callers own: parameters, parts of parameters, and constants of the
module.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import runnel

ROOT = Path(runnel.__file__).parent


def called(node: ast.AST) -> str:
    """Return the last name of what is called or used as a decorator."""
    function = node.func if isinstance(node, ast.Call) else node
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def kernels(tree: ast.AST) -> Iterator[tuple[ast.FunctionDef, bool]]:
    """Yield each compiled function, and whether its code is put into its callers'."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if called(decorator) in (
                    "njit",
                    "jit",
                    "register_jitable",
                    "guvectorize",
                    "vectorize",
                ):
                    options = decorator.keywords if isinstance(decorator, ast.Call) else []
                    yield node, any(option.arg == "inline" for option in options)


def root(node: ast.expr) -> str:
    """Return the name whose part an expression is; "" for any other expression."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def names(target: ast.expr) -> list[str]:
    """Return the names that a target binds; an element or a field is no name."""
    if isinstance(target, ast.Tuple | ast.List):
        return [name for part in target.elts for name in names(part)]
    if isinstance(target, ast.Starred):
        return names(target.value)
    return [target.id] if isinstance(target, ast.Name) else []


def assigned(kernel: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yield each name that is assigned, and the name whose part its value is; "" for any other
    value.
    """
    for node in ast.walk(kernel):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                parts = [target]
                values = [node.value]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    parts, values = target.elts, node.value.elts
                for part, value in zip(parts, values, strict=True):
                    yield from ((name, root(value)) for name in names(part))
        elif isinstance(node, ast.NamedExpr):
            yield node.target.id, root(node.value)
        elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For | ast.comprehension):
            yield from ((name, "") for name in names(node.target))


def of_the_caller(kernel: ast.FunctionDef, inlined: bool) -> set[str]:
    """Return the names that stay valid as long as the kernel runs.

    A parameter of an inlined kernel may be a local name of its caller, which dies there.
    """
    arguments = (
        [] if inlined else [*kernel.args.posonlyargs, *kernel.args.args, *kernel.args.kwonlyargs]
    )
    values: dict[str, list[str]] = {}
    for name, value in assigned(kernel):
        values.setdefault(name, []).append(value)
    known = {argument.arg for argument in arguments if "" not in values.get(argument.arg, [])}
    while more := {name for name, roots in values.items() if known.issuperset(roots)} - known:
        known |= more
    return known


def unsafe(source: str) -> list[str]:
    """Return the addresses in kernels that may be of freed memory."""
    tree = ast.parse(source)
    constants = {
        name.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name) and name.id.isupper()
    }
    found = []
    for kernel, inlined in kernels(tree):
        known = of_the_caller(kernel, inlined) | (
            constants - {name for name, _ in assigned(kernel)}
        )
        for node in ast.walk(kernel):
            taken: list[ast.expr] = []
            if isinstance(node, ast.Call) and called(node) in ("address", "carray", "farray"):
                taken = node.args[:1]
            elif isinstance(node, ast.Attribute) and node.attr == "ctypes":
                taken = [node.value]
            found += [
                f"{kernel.name}: {ast.unparse(node)}" for one in taken if root(one) not in known
            ]
    return found


@pytest.mark.parametrize(
    "path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_addresses_are_of_what_the_caller_owns(path: Path) -> None:
    assert unsafe(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "body",
    [
        "memory = np.empty(8, np.float32); use(address(memory))",
        "memory = np.empty(8, np.float32); start = memory.ctypes.data; use(start)",
        "for _ in prange(4):\n  memory = np.zeros(8)\n  use(shift(address(memory), 4))",
        "use(address(np.empty(8)))",
        "memory = np.empty((2, 8)); row = memory[1]; use(address(row))",
        "rows, other = np.zeros((2, 8)); use(address(rows))",
        "rows, other = x, x + 1; use(address(other))",
        "memory = _Memory(np.zeros(8)); use(address(memory.row))",
        "y = x.copy(); use(address(y))",
        "x = x * 2; use(address(x))",
        "y = x\ny = np.empty(8)\nuse(address(y))",
        "if x[0]:\n  y = x\nelse:\n  y = np.empty(8)\nuse(address(y))",
        "y = np.ascontiguousarray(x); use(numba.carray(y, 8))",
    ],
)
def test_the_pattern_is_seen(body: str) -> None:
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    assert len(unsafe(f"@njit(**PARALLEL)\ndef kernel(x, w):\n{lines}")) == 1
    assert unsafe(f"def plain(x, w):\n{lines}") == []  # Python counts references


def test_what_the_caller_owns_is_allowed() -> None:
    lines = (
        "y, z = w\n    first = z[3]\n    last = first.part\n    use(address(x), address(last),"
        " address(TABLE), x.ctypes.data)\n"
    )
    assert unsafe(f"TABLE = np.zeros(8)\n@njit(**SERIAL)\ndef kernel(x, w):\n    {lines}") == []
    assert len(unsafe(f"@njit(inline='always')\ndef kernel(x, w):\n    {lines}")) == 4
