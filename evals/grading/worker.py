"""
Say whether answers mean the same as the true ones. A script of its own, to be killed when it thinks
for too long.

A line of JSON comes in on standard input, ``{"gold": ..., "answer": ...}``, and a line goes out,
``true`` or ``false``. The first line out says that the script is ready. An answer that takes more
than its seconds of computing ends the process: what is computed for too long does not depend on how
busy the machine is, nor on anybody being there to see it.
"""

from __future__ import annotations

import importlib
import json
import logging
import resource
import signal
import sys
from typing import Any

# bytes of address space: enough for any answer, and not enough to starve the machine
MEMORY = 4 * 2**30
DIGITS = 10  # after the point that two numbers have in common
WARM_UP = r"\frac{1}{2}"  # loads what the library loads only when it is needed


def main(seconds: float) -> None:
    """Answer line by line until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    library: Any = importlib.import_module("math_verify")
    sympy: Any = importlib.import_module("sympy")
    # it warns that it keeps no deadline; we do
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    parser: Any = importlib.import_module("math_verify.parser")
    plain = parser.NormalizationConfig(
        basic_latex=True,
        units=False,
        malformed_operators=False,
        nits=False,
        boxed="last",
        equations=False,
    )
    # Its own plain numbers, which it finds in anything, its units and its repairs would take a
    # wrong answer for right.
    latex = [library.LatexExtractionConfig(boxed_match_priority=0, normalization_config=plain)]

    def parse(expression: str) -> list[Any]:
        # The library takes i for the imaginary unit only where no digit stands before it.
        found: list[Any] = library.parse(rf"\boxed{{{expression}}}", latex, parsing_timeout=None)
        return [each if isinstance(each, str) else each.xreplace(imaginary(each)) for each in found]

    def imaginary(each: Any) -> dict[Any, Any]:
        return {symbol: sympy.I for symbol in each.free_symbols if symbol.name == "i"}

    def same(gold: str, answer: str) -> bool:
        return bool(
            library.verify(parse(gold), parse(answer), float_rounding=DIGITS, timeout_seconds=None)
        )

    same(WARM_UP, "0.5")
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        # nobody handles the signal: it ends the process
        signal.setitimer(signal.ITIMER_PROF, seconds)
        verdict = same(request["gold"], request["answer"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(verdict), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
