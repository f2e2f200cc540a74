"""
Say whether answers mean the same as the true ones. A script of its own, to be killed when it thinks for too long.

A line of JSON comes in on standard input, ``{"gold": ..., "answer": ...}``, and a line goes out, ``true`` or ``false``.
The first line out says that the script is ready. An answer that takes more than its seconds of computing ends the
process: what is computed for too long does not depend on how busy the machine is, nor on anybody being there to see it.
"""

from __future__ import annotations

import importlib
import json
import logging
import resource
import signal
import sys
from typing import Any

MEMORY = 4 * 2**30  # bytes of address space: enough for any answer, and not enough to starve the machine
WARM_UP = r"\boxed{\frac{1}{2}}"  # loads what the library loads only when it is needed


def main(seconds: float) -> None:
    """Answer line by line until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    library: Any = importlib.import_module("math_verify")
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns that it keeps no deadline; we do
    library.verify(
        library.parse(WARM_UP, parsing_timeout=None), library.parse("0.5", parsing_timeout=None), timeout_seconds=None
    )
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, seconds)  # nobody handles the signal: it ends the process
        gold = library.parse(rf"\boxed{{{request['gold']}}}", parsing_timeout=None)
        answer = library.parse(request["answer"], parsing_timeout=None)
        same = bool(library.verify(gold, answer, timeout_seconds=None))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(same), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
