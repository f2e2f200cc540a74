"""Compare two expressions by algebra."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any

sympy: Any = import_module("sympy")
latex: Any = import_module("latex2sympy2_extended.latex2sympy2")

QUICK_DIGITS = 50
"""Digits that tell most numbers apart."""
PROOF_DIGITS = 300
"""Digits in which numbers count as equal if algebra can neither prove nor refute it."""
# With the library's repairs of spelling, wrong answers would count as right.
SPELLING = latex.NormalizationConfig(boxed="none")
LETTERS = latex.ConversionConfig(lowercase_symbols=False)
CONSTANTS = {"i": sympy.I, "e": sympy.E}


@lru_cache
def parse(expression: str) -> Any:
    """Parse *expression*. Decimals become fractions, and ``i`` is the imaginary unit."""
    value = latex.latex2sympy(
        expression,
        is_real=True,
        normalization_config=SPELLING,
        conversion_config=LETTERS,
    )
    if isinstance(value, sympy.FiniteSet):  # braces around one expression
        (value,) = value
    exact = {number: sympy.Rational(str(number)) for number in value.atoms(sympy.Float)}
    for symbol in value.free_symbols:
        if symbol.name in CONSTANTS:
            exact[symbol] = CONSTANTS[symbol.name]
    return value.xreplace(exact)


def equal(left: Any, right: Any) -> bool:
    """Whether two expressions or equations are equal for all values of their variables."""
    if isinstance(left, sympy.Eq) and isinstance(right, sympy.Eq):
        # Equations are equal if one is a multiple of the other.
        ratio = sympy.simplify((left.lhs - left.rhs) / (right.lhs - right.rhs))
        return bool(ratio.is_number and ratio.is_nonzero)
    if isinstance(left, sympy.MatrixBase) or isinstance(right, sympy.MatrixBase):
        difference = (left - right).doit()  # matrices of other shapes raise an error: not equal
        return all(equal(entry, sympy.S.Zero) for entry in difference.flat())
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
