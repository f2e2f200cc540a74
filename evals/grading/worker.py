"""
Say whether answers mean the same as true answers.

The module is a script, because a process can be killed. It reads lines of JSON from standard input,
``{"gold": ..., "answer": ...}``, and prints ``true`` or ``false`` for each. Its first line says
that it is ready. An answer that takes too many seconds of computing ends the process. Computing
time does not depend on how busy the machine is.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import resource
import signal
import sys
from typing import Any

MEMORY_BYTES = 4 * 2**30
"""Address space of the process: enough for any answer, and too little to starve the machine."""
QUICK_DIGITS = 50
"""Digits that tell most numbers apart."""
PROOF_DIGITS = 300
"""Digits in which numbers count as equal if algebra can neither prove nor refute it."""
WARM_UP = r"\frac{1}{2}"
"""An expression that makes the library load all its parts."""


def main(seconds: float) -> None:
    """Answer line by line until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    library = _library()

    def same(gold: str, answer: str) -> bool:
        true_value = _parse(library, gold)
        value = _parse(library, answer)
        return bool(library.verify(true_value, value, timeout_seconds=None))

    same(WARM_UP, "0.5")
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        # Nothing handles the signal, which ends the process.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        verdict = same(request["gold"], request["answer"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(verdict), flush=True)


def _library() -> Any:
    """Import the algebra library. Letters keep their case, and numbers are compared exactly."""
    library: Any = importlib.import_module("math_verify")
    parser: Any = importlib.import_module("math_verify.parser")
    grader: Any = importlib.import_module("math_verify.grader")
    converter: Any = importlib.import_module("latex2sympy2_extended.latex2sympy2")
    exact_case = converter.ConversionConfig(lowercase_symbols=False)
    parser.latex2sympy = functools.partial(parser.latex2sympy, conversion_config=exact_case)
    grader.sympy_numeric_eq = _equal
    grader.sympy_symbolic_eq = _never
    grader.sympy_compare_symbols = _equal
    # The library warns that it has no deadline. The timer is one.
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    return library


def _parse(library: Any, expression: str) -> list[Any]:
    """Parse *expression*. Decimals become fractions, and ``i`` is the imaginary unit."""
    # With the library's plain numbers, units and repairs, wrong answers would count as right.
    plain = library.parser.NormalizationConfig(
        basic_latex=True,
        units=False,
        malformed_operators=False,
        nits=False,
        boxed="last",
        equations=False,
    )
    latex = [library.LatexExtractionConfig(boxed_match_priority=0, normalization_config=plain)]
    found: list[Any] = library.parse(
        rf"\boxed{{{expression}}}",
        latex,
        parsing_timeout=None,
    )
    return [value if isinstance(value, str) else value.xreplace(_exact(value)) for value in found]


def _exact(expression: Any) -> dict[Any, Any]:
    """
    Return the exact values of atoms of *expression*.

    The library takes ``i`` for the imaginary unit only if no digit stands before it.
    """
    sympy: Any = importlib.import_module("sympy")
    constants = {"i": sympy.I, "e": sympy.E}
    values = {number: sympy.Rational(str(number)) for number in expression.atoms(sympy.Float)}
    for symbol in expression.free_symbols:
        if symbol.name in constants:
            values[symbol] = constants[symbol.name]
    return values


def _equal(left: Any, right: Any, *_: Any) -> bool:
    """Whether two expressions, or two matrices, are equal for all values of their variables."""
    sympy: Any = importlib.import_module("sympy")
    if isinstance(left, sympy.MatrixBase) or isinstance(right, sympy.MatrixBase):
        difference = (left - right).doit()  # matrices of other shapes raise an error: not equal
        return all(_equal(entry, sympy.S.Zero) for entry in difference.flat())
    left = left.doit()
    right = right.doit()
    if left == right:
        return True
    difference = left - right
    constant = not difference.free_symbols
    if constant and not _close(left, right, QUICK_DIGITS):
        return False
    proof = difference.equals(0)
    if proof is None and constant:
        return _close(left, right, PROOF_DIGITS)
    return bool(proof)


def _close(left: Any, right: Any, digits: int) -> bool:
    """Whether two numbers have nearly *digits* digits in common, however small they are."""
    first = left.evalf(digits, maxn=4 * digits)
    second = right.evalf(digits, maxn=4 * digits)
    size = max(abs(first), abs(second))
    return bool(abs(first - second) <= size * 10 ** (10 - digits))


def _never(*_: Any) -> bool:
    """Stand in for a comparison that `_equal` has done."""
    return False


if __name__ == "__main__":
    main(float(sys.argv[1]))
