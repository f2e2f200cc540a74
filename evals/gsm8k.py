"""``python -m stepspec.evals.gsm8k``: the same as ``stepspec eval gsm8k``."""

from __future__ import annotations

from .cli import alone

if __name__ == "__main__":
    alone("gsm8k")
