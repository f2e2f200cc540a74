"""
``make size``: how large each part of the repository is, against its goal; exit with 1 above one.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

PACKAGE = ("src", "orchestrator", "policies", "prompts", "evals")
LINES, PARAMETERS, DEPTH = 60, 8, 4
"""
The most of a function: lines without its docstring, parameters without ``self``, blocks within each
other.
"""

BLOCKS = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.With,
    ast.AsyncWith,
    ast.Try,
    ast.TryStar,
    ast.Match,
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; *goal* is the most it may be, or None."""

    name: str
    value: int
    goal: int | None = None

    @property
    def met(self) -> bool:
        return self.goal is None or self.value <= self.goal

    def __str__(self) -> str:
        goal = "" if self.goal is None else f"{self.goal:,}"
        return f"{self.name:<28} {self.value:>12,} {goal:>12}{'' if self.met else '  too large'}"


def tracked(root: Path, *folders: str, suffix: str) -> list[Path]:
    """Return the files of git below *folders* of *root*, those that links lead to left out."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *folders], cwd=root, capture_output=True, text=True, check=True
    )
    paths = (root / name for name in listed.stdout.split("\0") if name.endswith(suffix))
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def wheel_bytes(root: Path) -> int:
    """Build the wheel of *root* and return its size."""
    with TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "--target",
            "wheel",
            "--directory",
            folder,
        ]
        subprocess.run(command, cwd=root, capture_output=True, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        return wheel.stat().st_size


def table(root: Path) -> list[Row]:
    """Measure the repository at *root*."""
    package, lab, tests = (
        tracked(root, *parts, suffix=".py") for parts in (PACKAGE, ("lab",), ("tests",))
    )
    pages = [path for path in tracked(root, "docs", suffix=".md") if path.parent == root / "docs"]
    decisions = [path for path in tracked(root, "docs/decisions", suffix=".md")]
    return [
        Row("package: lines", lines(package), 33_000),
        Row("package: files", len(package), 180),
        Row("lab: lines", lines(lab), 11_000),
        Row("lab: files", len(lab)),
        Row("tests: lines", lines(tests), 45_000),
        Row("tests: files", len(tests)),
        Row("docs: pages", len(pages), 14),
        Row("docs: lines", lines(pages)),
        Row("docs: decisions", len(decisions)),
        Row("wheel: bytes", wheel_bytes(root), 3_300_000),
        Row("functions above the limits", len(list(too_large(root))), 0),
    ]


def too_large(root: Path) -> Iterator[str]:
    """
    Yield where each function of the package above a limit is, and what it has.

    A decision defends one by the sentence "`Class.function` has 12 parameters".
    """
    texts = (
        path.read_text(encoding="utf-8") for path in tracked(root, "docs/decisions", suffix=".md")
    )
    decisions = " ".join(" ".join(texts).split())
    for path in tracked(root, *PACKAGE, suffix=".py"):
        for name, function in functions(ast.parse(path.read_text(encoding="utf-8"))):
            what = [each for each in excess(function) if f"`{name}` has {each}" not in decisions]
            if what:
                yield f"{path.relative_to(root)}:{function.lineno} {name}: {', '.join(what)}"


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, Function]]:
    """
    Yield every function in *tree*, with its name after the names of the classes and functions
    around it.
    """
    for node in ast.iter_child_nodes(tree):
        name = within
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{within}.{node.name}".lstrip(".")
            if not isinstance(node, ast.ClassDef):
                yield name, node
        yield from functions(node, name)


def excess(function: Function) -> list[str]:
    """Return what of a *function* is above a limit."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    long = body[-1].end_lineno - body[0].lineno + 1 if body and body[-1].end_lineno else 0
    parameters, depth = len(own_parameters(function)), deepest(body)
    return [
        f"{value} {name}"
        for name, value, most in (
            ("lines", long, LINES),
            ("parameters", parameters, PARAMETERS),
            ("blocks deep", depth, DEPTH),
        )
        if value > most
    ]


def own_parameters(function: Function) -> list[str]:
    """
    Return the parameters besides ``self``, and besides the options of a command, which typer
    describes.
    """
    if any(
        ast.unparse(decorator).startswith("with_settings(") for decorator in function.decorator_list
    ):
        return []
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [each.arg for each in every if each.arg not in ("self", "cls") and not is_option(each)]


def is_option(argument: ast.arg) -> bool:
    return argument.annotation is not None and "typer." in ast.unparse(argument.annotation)


def deepest(body: Sequence[ast.stmt]) -> int:
    """
    Return how many blocks lie within each other; functions and classes within count by themselves.
    """
    return max((depth(statement) for statement in body), default=0)


def depth(statement: ast.stmt) -> int:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return 0
    inner = [
        each for field in ("body", "orelse", "finalbody") for each in getattr(statement, field, ())
    ]
    for holder in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        inner += holder.body
    if (
        isinstance(statement, ast.If)
        and len(statement.orelse) == 1
        and isinstance(statement.orelse[0], ast.If)
    ):
        return max(1 + deepest(statement.body), depth(statement.orelse[0]))  # an elif is no deeper
    return (isinstance(statement, BLOCKS) and 1) + deepest(inner)


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    rows = table(root)
    print(f"{'':<28} {'now':>12} {'goal':>12}")
    for row in rows:
        print(row)
    for line in too_large(root):
        print(f"  {line}")
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
