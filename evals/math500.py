"""``python -m stepspec.evals.math500``: the same as ``stepspec eval math500``."""

from __future__ import annotations

from .cli import alone

if __name__ == "__main__":
    alone("math500")
