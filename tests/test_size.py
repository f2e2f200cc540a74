"""What ``make size`` counts of a function."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("size", Path(__file__).parents[1] / ".ci/size.py")
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
