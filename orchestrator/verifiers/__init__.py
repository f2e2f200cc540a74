"""
Verifiers: programs that judge a step or the answer, as a function or a served classifier, with a
deadline and a fallback.
"""

from .functions import VERIFIERS, Candidate, VerifierFunction
from .settings import DecisionsVerifier, FunctionVerifier
from .verifier import AnswerCheck, CheckedAnswer, ConnectedVerifier, Verifier, yes_or_no

__all__ = [
    "VERIFIERS",
    "AnswerCheck",
    "Candidate",
    "CheckedAnswer",
    "ConnectedVerifier",
    "DecisionsVerifier",
    "FunctionVerifier",
    "Verifier",
    "VerifierFunction",
    "yes_or_no",
]
