"""Verifiers: functions that judge a step or the answer, with a deadline and a fallback."""

from .functions import VERIFIERS, Candidate, VerifierFunction
from .settings import FunctionVerifier
from .verifier import AnswerCheck, CheckedAnswer, SharedVerifier, Verifier, yes_or_no

__all__ = [
    "VERIFIERS",
    "AnswerCheck",
    "Candidate",
    "CheckedAnswer",
    "FunctionVerifier",
    "SharedVerifier",
    "Verifier",
    "VerifierFunction",
    "yes_or_no",
]
