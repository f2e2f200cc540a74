r"""
Verifiers on a server: the project's own JSON over HTTP, and the Decisions API.

The contract over HTTP is one POST. The request says what to judge::

    {"stage": "answer", "problem": [{"role": "user", "content": "..."}], "steps": ["...", "..."],
     "text": "... \\boxed{42}", "answer": "42"}

*stage* is "step" or "answer", *steps* are the texts of the steps before, and *text* is what is to be judged; *answer*,
of an answer alone, is the content of its last box or its last line. The reply is ``{"score": 0.0, "reason": "..."}``,
where the score is from 0 to 1 and the reason may be left out.
"""

from __future__ import annotations

from ..chain import Rating
from ..endpoints.client import Connection
from ..endpoints.vllm_protocol import DECISIONS, JUDGE, Body
from ..errors import EndpointRejected, EndpointUnavailable, MalformedReply
from .functions import Candidate, read_rating
from .settings import DecisionsVerifier, HttpVerifier

QUESTION = "candidate"  # the name of the one question in a request for a decision


class HttpRater:
    """Posts candidates to the URL of a verifier."""

    def __init__(self, settings: HttpVerifier) -> None:
        self._connection, self._path = Connection(settings.address), settings.path

    async def close(self) -> None:
        await self._connection.close()

    async def rate(self, candidate: Candidate) -> Rating:
        """Return the server's rating. Raise an `EndpointError` if there is none."""
        body: Body = {
            "stage": candidate.stage,
            "problem": [{"role": message.role, "content": message.content} for message in candidate.problem],
            "steps": list(candidate.steps),
            "text": candidate.text,
            **({"answer": candidate.answer} if candidate.stage == "answer" else {}),
        }
        call = self._connection.call(JUDGE)
        reply = await self._connection.post(call, self._path, body)
        try:
            return read_rating(reply.get("score"), reply.get("reason"))
        except ValueError as exc:
            raise call.error(MalformedReply, str(exc)) from exc


class DecisionsRater:
    """Asks a classifier or judge for the probability of a statement about each candidate."""

    def __init__(self, settings: DecisionsVerifier) -> None:
        self._connection, self._statement, self._model = Connection(settings.address), settings.question, settings.model

    async def close(self) -> None:
        await self._connection.close()

    async def rate(self, candidate: Candidate) -> Rating:
        """Return the probability. Raise an `EndpointError` if there is none, as where the model declines to judge."""
        call = self._connection.call(JUDGE)
        questions = [{"type": "predicate", "name": QUESTION, "instructions": self._statement}]
        try:
            self._model = self._model or await self._connection.model_name()
            body: Body = {"model": self._model, "input": _evidence(candidate), "questions": questions}
            reply = await self._connection.post(call, DECISIONS, body)
        except (EndpointRejected, EndpointUnavailable) as exc:
            if exc.status not in (404, 501):
                raise
            cure = f"no {DECISIONS} for this model here ({exc.cause}); does this server have the Decisions API?"
            raise call.error(EndpointRejected, cure) from exc
        try:
            answer = reply["answers"][0]
            if answer["type"] == "refusal":
                raise call.error(MalformedReply, "the model declined to judge")
            return read_rating(answer["probability"])
        except (LookupError, TypeError, ValueError) as exc:
            raise call.error(MalformedReply, f"no decision in the reply: {exc}") from exc


def _evidence(candidate: Candidate) -> str:
    """Write down what is judged, with the candidate's text last, so that requests of a run share a prefix."""
    problem = "\n\n".join(message.content for message in candidate.problem)
    steps = "".join(candidate.steps).strip()
    parts = (("Problem", problem), ("Reasoning", steps), ("Candidate", candidate.text.strip()))
    return "\n\n".join(f"{name}:\n{text}" for name, text in parts if text)
