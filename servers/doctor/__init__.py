"""
Diagnose a pair of endpoints and a critic: what each can do, what does not work, what costs, and
what helps.
"""

from .probes import diagnose
from .report import render

__all__ = ["diagnose", "render"]
