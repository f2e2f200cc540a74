"""Diagnose a pair of endpoints and a critic: what each can do, what does not work, what costs, and what helps."""

from .probes import diagnose, diagnose_critic, diagnose_verifier, examine
from .report import report_json, report_schema
from .table import render

__all__ = ["diagnose", "diagnose_critic", "diagnose_verifier", "examine", "render", "report_json", "report_schema"]
