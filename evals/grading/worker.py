"""
Say whether answers mean the same as the true ones. A script of its own, to be killed when it thinks
for too long.

A line of JSON comes in on standard input, ``{"gold": ..., "answer": ...}``, and a line goes out,
``true`` or ``false``. The first line out says that the script is ready. An answer that takes more
than its seconds of computing ends the process: what is computed for too long does not depend on how
busy the machine is, nor on anybody being there to see it.
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

# bytes of address space: enough for any answer, and not enough to starve the machine
MEMORY = 4 * 2**30
QUICK_DIGITS = 50  # that tell most numbers apart
PROOF_DIGITS = 300  # that take numbers for equal if algebra can neither prove nor refute it
WARM_UP = r"\frac{1}{2}"  # loads what the library loads only when it is needed


def main(seconds: float) -> None:
    """Answer line by line until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    library = _library()

    def same(gold: str, answer: str) -> bool:
        parsed = _parse(library, gold), _parse(library, answer)
        return bool(library.verify(*parsed, timeout_seconds=None))

    same(WARM_UP, "0.5")
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        # nobody handles the signal: it ends the process
        signal.setitimer(signal.ITIMER_PROF, seconds)
        verdict = same(request["gold"], request["answer"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(verdict), flush=True)


def _library() -> Any:
    """
    Import the algebra library. Its letters keep their case, and its numbers are compared exactly.
    """
    library: Any = importlib.import_module("math_verify")
    parser: Any = importlib.import_module("math_verify.parser")
    grader: Any = importlib.import_module("math_verify.grader")
    converter: Any = importlib.import_module("latex2sympy2_extended.latex2sympy2")
    exact_case = converter.ConversionConfig(lowercase_symbols=False)
    parser.latex2sympy = functools.partial(parser.latex2sympy, conversion_config=exact_case)
    grader.sympy_numeric_eq = _equal
    grader.sympy_symbolic_eq = _never
    grader.sympy_compare_symbols = _equal
    # it warns that it keeps no deadline; we do
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    return library


def _parse(library: Any, expression: str) -> list[Any]:
    """Parse *expression*. Decimals become fractions, and ``i`` is the imaginary unit."""
    # Its own plain numbers, which it finds in anything, its units and its repairs would take a
    # wrong answer for right.
    plain = library.parser.NormalizationConfig(
        basic_latex=True,
        units=False,
        malformed_operators=False,
        nits=False,
        boxed="last",
        equations=False,
    )
    latex = [library.LatexExtractionConfig(boxed_match_priority=0, normalization_config=plain)]
    found: list[Any] = library.parse(rf"\boxed{{{expression}}}", latex, parsing_timeout=None)
    return [each if isinstance(each, str) else each.xreplace(_exact(each)) for each in found]


def _exact(each: Any) -> dict[Any, Any]:
    """
    Return what replaces the atoms of *each* that are not exact.

    The library takes ``i`` for the imaginary unit only where no digit stands before it.
    """
    sympy: Any = importlib.import_module("sympy")
    units = {symbol: sympy.I for symbol in each.free_symbols if symbol.name == "i"}
    euler = {symbol: sympy.E for symbol in each.free_symbols if symbol.name == "e"}
    decimals = {number: sympy.Rational(str(number)) for number in each.atoms(sympy.Float)}
    return units | euler | decimals


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
    values = left.evalf(digits, maxn=4 * digits), right.evalf(digits, maxn=4 * digits)
    apart = abs(values[0] - values[1])
    size = max(abs(values[0]), abs(values[1]))
    return bool(apart <= size * 10 ** (10 - digits))


def _never(*_: Any) -> bool:
    """Stand in for a comparison that `_equal` has done."""
    return False


if __name__ == "__main__":
    main(float(sys.argv[1]))
