"""
``make size``: the size and the density of the code, against their goals.

``--ratchet`` fails where a figure is worse than the one in ``.ci/ratchet.json``. ``--record`` writes
today's figures into that file. ``--list`` names each place that a goal of zero forbids.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

PACKAGE_FOLDERS = (
    "src",
    "orchestrator",
    "policies",
    "prompts",
    "service",
    "servers",
    "evals",
)
DATA_SUFFIXES = (".txt", ".toml", ".jinja")
RATCHET_FILE = ".ci/ratchet.json"

MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 6
MAX_DEPTH = 3
MAX_LINE_LENGTH = 100
MAX_WHEEL_BYTES = 3_300_000

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
TEXT_OR_TUPLE = (ast.JoinedStr, ast.Tuple, ast.List)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Goals:
    """The most that a part of the repository may have. None: the figure has no goal."""

    nodes: int | None = None
    """Syntax nodes of all files."""
    density: float | None = None
    """Syntax nodes per line, blank lines and comments included."""


GOALS: Mapping[str, Goals] = {
    "package": Goals(nodes=185_000, density=5.2),
    "lab": Goals(nodes=50_000, density=6.0),
    "tests": Goals(density=7.5),
}
MAX_WORDS = 40_000
MAX_PACKED_ASSIGNMENTS = 40


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of the table."""

    name: str
    """What is counted, with the part of the repository in front."""
    value: float
    """Today's figure."""
    goal: float | None = None
    """The most that the figure should be. None: there is no goal."""

    @property
    def met(self) -> bool:
        return self.goal is None or self.value <= self.goal

    def __str__(self) -> str:
        goal = "" if self.goal is None else shown(self.goal)
        verdict = "" if self.met else "  not yet"
        return f"{self.name:<52} {shown(self.value):>10} {goal:>10}{verdict}"


def shown(value: float) -> str:
    """Return *value* with two digits after the point if it is a share, else as a whole number."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2f}"


@dataclass(slots=True)
class Counts:
    """What was counted in the Python files of one part of the repository."""

    files: int = 0
    """Files."""
    lines: int = 0
    """Lines, blank lines and comments included."""
    nodes: int = 0
    """Syntax nodes (``ast.walk``)."""
    places: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """For each forbidden pattern, where it occurs: ``path:line``."""

    @property
    def density(self) -> float:
        """Syntax nodes per line."""
        return round(self.nodes / max(1, self.lines), 2)


PATTERNS = (
    "conditionals inside conditionals",
    "texts or tuples times a truth value",
    "packed assignments",
    ":= outside of if, while and comprehension filters",
    f"lines above {MAX_LINE_LENGTH} characters",
    "functions above the limits",
)


def tracked(root: Path, *folders: str, suffixes: Sequence[str]) -> list[Path]:
    """Return the files of git in *folders* below *root*. Symbolic links are left out."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *folders], cwd=root, capture_output=True, text=True, check=True
    )
    paths = [root / name for name in listed.stdout.split("\0") if name.endswith(tuple(suffixes))]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def count(root: Path, paths: Iterable[Path], decisions: str = "") -> Counts:
    """
    Count the Python files at *paths*.

    A function above the limits is not listed if *decisions*, the text of all decisions, has the
    sentence "`Class.function` has 12 parameters".
    """
    counts = Counts(places={pattern: [] for pattern in PATTERNS})
    for path in paths:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        name = str(path.relative_to(root))
        counts.files += 1
        counts.lines += len(text.splitlines())
        counts.nodes += sum(1 for _ in ast.walk(tree))
        for pattern, line in patterns(tree, text):
            counts.places[pattern].append(f"{name}:{line}")
        for place in large_functions(tree, decisions):
            counts.places["functions above the limits"].append(f"{name}:{place}")
    return counts


def patterns(tree: ast.AST, text: str) -> Iterator[tuple[str, int]]:
    """Yield each pattern that makes code dense, with its line."""
    allowed = conditions_that_may_name(tree)
    for node in ast.walk(tree):
        if is_nested_conditional(node):
            yield "conditionals inside conditionals", getattr(node, "lineno", 0)
        if is_text_times_truth(node):
            yield "texts or tuples times a truth value", getattr(node, "lineno", 0)
        if isinstance(node, ast.Assign) and is_packed(node):
            yield "packed assignments", node.lineno
        if isinstance(node, ast.NamedExpr) and id(node) not in allowed:
            yield ":= outside of if, while and comprehension filters", node.lineno
    for number, line in enumerate(text.splitlines(), start=1):
        if len(line) > MAX_LINE_LENGTH:
            yield f"lines above {MAX_LINE_LENGTH} characters", number


def is_nested_conditional(node: ast.AST) -> bool:
    if not isinstance(node, ast.IfExp):
        return False
    return any(isinstance(inner, ast.IfExp) for inner in ast.walk(node) if inner is not node)


def is_text_times_truth(node: ast.AST) -> bool:
    """Whether *node* is like ``"s" * (count != 1)`` or ``", of which few are known" * few``."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return False
    for text, factor in ((node.left, node.right), (node.right, node.left)):
        if is_text_or_tuple(text) and is_truth(factor):
            return True
        if is_sentence(text) and isinstance(factor, ast.Name | ast.Attribute):
            return True
    return False


def is_text_or_tuple(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes)
    return isinstance(node, TEXT_OR_TUPLE)


def is_sentence(node: ast.expr) -> bool:
    """Whether *node* is a text of several words, which nobody repeats a number of times."""
    words_of_text = re.findall(r"[A-Za-z]+", ast.unparse(node))
    return isinstance(node, ast.Constant | ast.JoinedStr) and len(words_of_text) > 2


def is_truth(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("bool", "any", "all")
    return isinstance(node, ast.Compare | ast.BoolOp)


def is_packed(node: ast.Assign) -> bool:
    """Whether *node* is like ``a, b = x, y``. A swap (``a, b = b, a``) is not packed."""
    target = node.targets[0]
    if not (isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)):
        return False
    return {ast.unparse(item) for item in target.elts} != {
        ast.unparse(item) for item in node.value.elts
    }


def conditions_that_may_name(tree: ast.AST) -> set[int]:
    """Return the ids of all nodes within heads of ``if`` and ``while`` and comprehension filters."""
    heads: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While):
            heads.append(node.test)
        if isinstance(node, ast.comprehension):
            heads.extend(node.ifs)
    return {id(inner) for head in heads for inner in ast.walk(head)}


def large_functions(tree: ast.AST, decisions: str) -> Iterator[str]:
    """Yield line, name and excess of each function above a limit that no decision defends."""
    for name, function in functions(tree):
        found = [each for each in excess(function) if f"`{name}` has {each}" not in decisions]
        if found:
            yield f"{function.lineno} {name}: {', '.join(found)}"


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, Function]]:
    """Yield every function in *tree* with its name, after the names of classes around it."""
    for node in ast.iter_child_nodes(tree):
        name = within
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{within}.{node.name}".lstrip(".")
            if not isinstance(node, ast.ClassDef):
                yield name, node
        yield from functions(node, name)


def excess(function: Function) -> list[str]:
    """Return what of a *function* is above a limit, like "8 parameters"."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    lines = 0
    if body and body[-1].end_lineno:
        lines = body[-1].end_lineno - body[0].lineno + 1
    parameters = len(own_parameters(function))
    depth = deepest(body)
    found: list[str] = []
    if lines > MAX_FUNCTION_LINES:
        found.append(f"{lines} lines")
    if parameters > MAX_PARAMETERS:
        found.append(f"{parameters} parameters")
    if depth > MAX_DEPTH:
        found.append(f"{depth} blocks deep")
    return found


def own_parameters(function: Function) -> list[str]:
    """
    Return the parameters without ``self``.

    Options of a command are left out: typer describes them.
    """
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    if any(decorator.startswith("with_settings(") for decorator in decorators):
        return []
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [each.arg for each in every if each.arg not in ("self", "cls") and not is_option(each)]


def is_option(argument: ast.arg) -> bool:
    annotation = ast.unparse(argument.annotation) if argument.annotation else ""
    return "Option(" in annotation or "Argument(" in annotation


def deepest(body: Sequence[ast.stmt]) -> int:
    """Return how many blocks lie within each other. Functions within count by themselves."""
    return max((depth_of(statement) for statement in body), default=0)


def depth_of(statement: ast.stmt) -> int:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return 0
    if isinstance(statement, ast.If) and is_elif(statement.orelse):
        return max(1 + deepest(statement.body), depth_of(statement.orelse[0]))
    inner: list[ast.stmt] = []
    for name in ("body", "orelse", "finalbody"):
        inner.extend(getattr(statement, name, ()))
    for holder in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        inner.extend(holder.body)
    if isinstance(statement, BLOCKS):
        return 1 + deepest(inner)
    return deepest(inner)


def is_elif(orelse: Sequence[ast.stmt]) -> bool:
    return len(orelse) == 1 and isinstance(orelse[0], ast.If)


def words(paths: Iterable[Path]) -> int:
    return sum(len(re.findall(r"\S+", path.read_text(encoding="utf-8"))) for path in paths)


def lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def wheel_bytes(root: Path) -> int:
    """Build the wheel of *root* and return its size."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
        subprocess.run([*command, "--directory", folder], cwd=root, capture_output=True, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        return wheel.stat().st_size


def count_parts(root: Path) -> dict[str, Counts]:
    """Count the package, lab and the tests."""
    pages = tracked(root, "docs/decisions", suffixes=[".md"])
    decisions = " ".join(" ".join(path.read_text(encoding="utf-8") for path in pages).split())
    folders = {"package": PACKAGE_FOLDERS, "lab": ("lab",), "tests": ("tests",)}
    return {
        part: count(root, tracked(root, *names, suffixes=[".py"]), decisions)
        for part, names in folders.items()
    }


def code_rows(parts: Mapping[str, Counts]) -> list[Row]:
    """Return the figures of the Python code."""
    rows: list[Row] = []
    for part, counts in parts.items():
        goals = GOALS[part]
        rows.append(Row(f"{part}: syntax nodes", counts.nodes, goals.nodes))
        rows.append(Row(f"{part}: syntax nodes per line", counts.density, goals.density))
        for pattern in PATTERNS:
            if pattern == "functions above the limits" and part != "package":
                continue
            goal = MAX_PACKED_ASSIGNMENTS if pattern == "packed assignments" else 0
            rows.append(Row(f"{part}: {pattern}", len(counts.places[pattern]), goal))
    return rows


def table(root: Path, parts: Mapping[str, Counts]) -> list[Row]:
    """Return every figure of the repository at *root*."""
    pages = [*tracked(root, "docs", suffixes=[".md"]), root / "README.md"]
    pages = [path for path in pages if path.exists() and path.parent.name != "decisions"]
    data = tracked(root, *PACKAGE_FOLDERS, suffixes=DATA_SUFFIXES)
    return [
        *code_rows(parts),
        Row("package: files", parts["package"].files),
        Row("package: lines", parts["package"].lines),
        Row("package: lines of data files", lines(data)),
        Row("docs and README: words", words(pages), MAX_WORDS),
    ]


def worse(rows: Iterable[Row], known: Mapping[str, float]) -> list[str]:
    """Return a line for each figure with a goal that is worse than the *known* one."""
    found: list[str] = []
    for row in rows:
        if row.goal is None:
            continue
        best = known.get(row.name)
        if best is None:
            found.append(f"{row.name}: not in {RATCHET_FILE}; run make ratchet")
        elif row.value > max(best, row.goal):
            found.append(f"{row.name}: {shown(row.value)}, was {shown(best)}")
    return found


def record(root: Path, rows: Iterable[Row]) -> None:
    """Write the figures that have a goal into the ratchet's file."""
    figures = {row.name: row.value for row in rows if row.goal is not None}
    path = root / RATCHET_FILE
    path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def check_ratchet(root: Path, rows: Sequence[Row]) -> int:
    known = json.loads((root / RATCHET_FILE).read_text(encoding="utf-8"))
    found = worse(rows, known)
    for line in found:
        print(line)
    if found:
        print("These figures may only get better: `make size` shows them, `--list` the places.")
        print("A feature that needs more: `make ratchet` in its last commit, which says why.")
        return 1
    return 0


def main() -> int:
    parser = ArgumentParser(description="Size and density of the code, against their goals.")
    parser.add_argument("root", nargs="?", default=".", help="the repository")
    parser.add_argument("--ratchet", action="store_true", help="fail where a figure got worse")
    parser.add_argument("--record", action="store_true", help=f"write {RATCHET_FILE}")
    parser.add_argument("--list", action="store_true", help="name the places of each pattern")
    options = parser.parse_args()
    root = Path(options.root).resolve()
    parts = count_parts(root)
    rows = table(root, parts)
    if options.ratchet:
        return check_ratchet(root, rows)
    if options.record:
        record(root, rows)
        return 0
    if options.list:
        for counts in parts.values():
            for pattern, places in counts.places.items():
                for place in places:
                    print(f"{pattern}: {place}")
    rows.append(Row("wheel: bytes", wheel_bytes(root), MAX_WHEEL_BYTES))
    print(f"{'':<52} {'now':>10} {'goal':>10}")
    for row in rows:
        print(row)
    if all(row.met for row in rows):
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
