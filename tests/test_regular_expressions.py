"""
Regular expressions take time in proportion to the text, however a client, a model or a server
writes it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import product
from types import ModuleType
from typing import Any, TypeAlias, cast

import pytest

import stepspec

parser: Any = importlib.import_module("re._parser")  # it has no types
Compiled: TypeAlias = re.Pattern[Any]

LENGTH = 20_000  # characters of a hostile text
# of computing, for one text; a linear pattern takes 0.01, a quadratic one 0.2 and more
SECONDS = 0.1
# An eighth of a text is tried first. If the time grows with the square of the length, it takes a
# 64th of SECONDS.
PART = 8
METHODS = ("search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split")
LEFT_OUT = re.compile(
    r".*\.__main__|stepspec\.evals\.(?!grading|provenance).*|.*_worker|.*\.guard|.*\.ray"
)
SIGNS = (*" \n\t0aA_.,;:!?'\"-+*/\\|<>()[]{}$%^`~#=&@", "é", "中", "。")
PAIRS = (
    *("a ", " a", "a\n", " \n", "\n ", "()", "{}", "[]", "<>", "</", "a.", "a'", "0,", "|-", ":-"),
    *('="', '",', "``a", "\\{"),
)
ENDS = ("", "\0", "\n")


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(stepspec.__path__, "stepspec."):
        if not LEFT_OUT.fullmatch(found.name):
            yield importlib.import_module(found.name)


def compiled(module: ModuleType) -> Iterator[tuple[str, Compiled]]:
    """The patterns of *module*, also those of the spellings of answers."""
    for name, value in vars(module).items():
        if isinstance(value, re.Pattern):
            yield name, value
        if name == "_SPELLINGS":
            for pattern, _ in cast("list[tuple[Compiled, str]]", value):
                yield f"{name} {pattern.pattern}", pattern


def used(module: ModuleType) -> Iterator[tuple[str, str]]:
    """The names of the patterns that *module* uses, each with the method that it calls."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.attr in METHODS
        ):
            yield node.value.id, node.attr


def inline(module: ModuleType) -> Iterator[tuple[Compiled, str]]:
    """
    The patterns that are written where *module* uses them, as in ``re.sub("...", ...)``, with the
    method.
    """
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="re"), attr=method),
                args=[ast.Constant(value=str(source)), *_],
            ) if method in METHODS:
                yield re.compile(source), method
            case _:
                pass


def collected() -> dict[str, tuple[Compiled, set[str]]]:
    """The patterns by their names, with the methods that are called of them."""
    names: dict[Compiled, str] = {}
    methods = defaultdict[Compiled, set[str]](set)
    for module in modules():
        patterns = dict(compiled(module))
        for name, pattern in patterns.items():
            names.setdefault(pattern, f"{module.__name__.removeprefix('stepspec.')}.{name}")
        for name, method in used(module):
            if name in patterns:
                methods[patterns[name]].add(method)
        for pattern, method in inline(module):
            names.setdefault(
                pattern, f"{module.__name__.removeprefix('stepspec.')} {pattern.pattern}"
            )
            methods[pattern].add(method)
    # One that is passed on may be searched for.
    return {
        name: (pattern, methods[pattern] or {"search", "finditer"})
        for pattern, name in names.items()
    }


def literals(tree: Any) -> Iterator[str]:
    """The literal texts of a parsed pattern, which a hostile text repeats."""
    run = ""
    for operation, argument in tree:
        if operation is parser.LITERAL:
            run += chr(argument)
            continue
        if run:
            yield run
        run = ""
        if operation is not parser.IN:
            yield from inner(argument)
    if run:
        yield run


def inner(argument: Any) -> Iterator[str]:
    if isinstance(argument, parser.SubPattern):
        yield from literals(argument)
    elif isinstance(argument, list | tuple):
        for each in cast("list[Any]", argument):
            yield from inner(each)


def hostile(pattern: Compiled) -> Iterator[tuple[str, str, str]]:
    """
    Texts that make a bad pattern begin or go back again and again: the head, the piece that is
    repeated, the end.
    """
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode()
    own = {*literals(parser.parse(source, pattern.flags & re.VERBOSE))}
    plain = {*SIGNS, *PAIRS}
    for piece in {*plain, *own, *(f"{each}{sign}" for each in own for sign in " {a")}:
        yield from (("", piece, end) for end in ENDS)
        if piece in plain:
            yield from ((each, piece, "\0") for each in own)


def seconds(pattern: Compiled, method: str, text: str) -> float:
    """The computing time of one use."""
    use: Any = getattr(pattern, method)
    subject: Any = text if isinstance(pattern.pattern, str) else text.encode()
    began = time.process_time()
    match method:
        case "finditer":
            deque(use(subject), maxlen=0)
        case "sub" | "subn":
            use(subject[:0], subject)
        case _:
            use(subject)
    return time.process_time() - began


@pytest.mark.timeout(400)  # seconds on a clock, beside other tests; the measure is computing time
def test_no_text_makes_a_pattern_slow() -> None:
    patterns = collected()
    assert {name.partition(".")[0] for name in patterns} >= {
        "orchestrator",
        "policies",
        "evals",
        "prompts",
    }
    assert len(patterns) > 40
    for name, (pattern, methods) in patterns.items():
        for (head, piece, end), method in product(hostile(pattern), methods):
            if (
                seconds(pattern, method, head + piece * (LENGTH // PART // len(piece)) + end)
                < SECONDS / PART**2
            ):
                continue
            text = head + piece * (LENGTH // len(piece)) + end
            took = seconds(pattern, method, text)
            if took > SECONDS:  # perhaps for another reason
                took = seconds(pattern, method, text)
            assert took < SECONDS, (
                f"{method} of {name} takes {took:.2f} s on {text[:40]!r}..., then {text[-1]!r}"
            )
