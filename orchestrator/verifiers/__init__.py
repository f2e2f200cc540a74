"""
Verifiers: programs that judge a step or the answer, over HTTP or as a function, with a deadline and
a fallback.
"""

from .functions import VERIFIERS, Candidate, VerifierFunction
from .settings import DecisionsVerifier, FunctionVerifier, HttpVerifier
from .verifier import AnswerCheck, CheckedAnswer, ConnectedVerifier, LargeJudge, Verifier

__all__ = [
    "VERIFIERS",
    "AnswerCheck",
    "Candidate",
    "CheckedAnswer",
    "ConnectedVerifier",
    "DecisionsVerifier",
    "FunctionVerifier",
    "HttpVerifier",
    "LargeJudge",
    "Verifier",
    "VerifierFunction",
]
