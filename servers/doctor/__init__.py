"""
Diagnose a pair of endpoints and a critic: what each can do, what does not work, what costs, and
what helps.
"""

from .probes import diagnose, diagnose_critic, examine
from .report import render, report_json

__all__ = ["diagnose", "diagnose_critic", "examine", "render", "report_json"]
