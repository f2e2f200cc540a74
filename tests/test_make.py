"""What ``make size`` counts of a function, and what ``make quick`` leaves out."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("size", ROOT / ".ci/size.py")
assert SPEC is not None
assert SPEC.loader is not None
size = importlib.util.module_from_spec(SPEC)
sys.modules["size"] = size  # for its dataclasses
SPEC.loader.exec_module(size)

LONG = "\n".join(f"    x{number} = {number}" for number in range(61))
DEEP = """
def f():
    if a:
        for b in c:
            with d:
                try:
                    pass
                except E:
                    if g:
                        pass
"""


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (f'def f():\n    """{LONG}"""\n    return 1', []),
        (f"def f():\n{LONG}", ["61 lines"]),
        ("def f(self, a, b, c, d, *, e, f, g, h): ...", []),
        ("async def f(a, b, c, d, *, e, f, g, h, i): ...", ["9 parameters"]),
        ("def f(a, b, c, d, e, f, g, h, i: Annotated[str, typer.Option()]): ...", []),
        ('@with_settings("eval")\ndef f(a, b, c, d, e, f, g, h, i: Limit): ...', []),
        (DEEP, ["5 blocks deep"]),
        ("def f():\n    if a: pass\n    elif b: pass\n    elif c: pass\n    elif d: pass\n    elif e: pass", []),
        ("def f():\n    if a:\n        def g():\n            if b:\n                while c: pass", []),
    ],
)
def test_a_function_above_a_limit_is_found(source: str, found: list[str]) -> None:
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    assert size.excess(function) == found


def test_a_decision_defends_a_function_above_a_limit(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "docs/decisions").mkdir(parents=True)
    (tmp_path / "src/api.py").write_text("class A:\n    def f(self, a, b, c, d, e, f, g, h, i): ...\n")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    assert [*size.too_large(tmp_path)] == ["src/api.py:2 A.f: 9 parameters"]
    (tmp_path / "docs/decisions/1.md").write_text("**`A.f` has 9\nparameters**, because")
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    assert [*size.too_large(tmp_path)] == []


def test_everything_that_quick_leaves_out_is_there() -> None:
    printed = subprocess.run(["make", "--dry-run", "quick"], cwd=ROOT, capture_output=True, text=True, check=True)
    left_out = re.findall(r"--ignore=(\S+)", printed.stdout)
    assert left_out
    assert [name for name in left_out if not (ROOT / name).exists()] == []
