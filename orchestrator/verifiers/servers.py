r"""
Verifiers on a server: the project's own JSON over HTTP, the Decisions API, and vLLM's structured decisions.

The contract over HTTP is one POST. The request says what to judge::

    {"stage": "answer", "problem": [{"role": "user", "content": "..."}], "steps": ["...", "..."],
     "text": "... \\boxed{42}", "answer": "42"}

*stage* is "step" or "answer", *steps* are the texts of the steps before, and *text* is what is to be judged; *answer*,
of an answer alone, is the content of its last box or its last line. The reply is ``{"score": 0.0, "reason": "..."}``,
where the score is from 0 to 1 and the reason may be left out.
"""

from __future__ import annotations

from typing import cast

from ..chain import Rating
from ..endpoints.client import Connection
from ..endpoints.vllm_protocol import DECISIONS, JUDGE, SYSTEMONE, Body, Call, Reply
from ..errors import EndpointRejected, EndpointUnavailable, MalformedReply
from .functions import Candidate, read_rating
from .settings import DecisionsVerifier, HttpVerifier, SystemOneVerifier

QUESTION = "candidate"  # the id of the one question in a request for a decision


class HttpRater:
    """Posts candidates to the URL of a verifier."""

    def __init__(self, settings: HttpVerifier) -> None:
        self._connection, self._path = Connection(settings.address), settings.path

    async def close(self) -> None:
        await self._connection.close()

    async def rate(self, candidate: Candidate) -> Rating:
        """Return the server's rating. Raise an `EndpointError` if there is none."""
        call = self._connection.call(JUDGE)
        return rating(call, await self._connection.post(call, self._path, candidate_body(candidate)))


class ClassifyingRater:
    """Asks a classifier or judge a question about each candidate."""

    def __init__(self, settings: DecisionsVerifier | SystemOneVerifier) -> None:
        self._connection, self._question, self._model = Connection(settings.address), settings.question, settings.model
        self._standard = isinstance(settings, DecisionsVerifier)

    async def close(self) -> None:
        await self._connection.close()

    async def rate(self, candidate: Candidate) -> Rating:
        """Return the probability of yes. Raise an `EndpointError` if there is none."""
        call, path = self._connection.call(JUDGE), DECISIONS if self._standard else SYSTEMONE
        try:
            if not self._standard:
                body = decision_body(candidate, self._question, self._model)
                return decided(call, await self._connection.post(call, path, body))
            self._model = self._model or await self._connection.model_name()
            body = predicate_body(candidate, self._question, self._model)
            return predicated(call, await self._connection.post(call, path, body))
        except (EndpointRejected, EndpointUnavailable) as exc:
            if exc.status not in (404, 501):
                raise
            cure = f"no {path} for this model here ({exc.cause}); does this server know structured decisions for it?"
            raise call.error(EndpointRejected, cure) from exc


def candidate_body(candidate: Candidate) -> Body:
    """Write *candidate* as the request to a verifier."""
    return {
        "stage": candidate.stage,
        "problem": [{"role": message.role, "content": message.content} for message in candidate.problem],
        "steps": list(candidate.steps),
        "text": candidate.text,
        **({"answer": candidate.answer} if candidate.stage == "answer" else {}),
    }


def rating(call: Call, reply: Reply) -> Rating:
    """Read the *reply* of a verifier."""
    try:
        return read_rating(reply.get("score"), reply.get("reason"))
    except ValueError as exc:
        raise call.error(MalformedReply, str(exc)) from exc


def decision_body(candidate: Candidate, question: str, model: str | None) -> Body:
    """Write the request for a decision about *candidate* by vLLM's structured decisions."""
    body: Body = {"state": _evidence(candidate), "questions": {QUESTION: {"type": "noul", "instructions": question}}}
    return body | ({"model": model} if model else {})


def predicate_body(candidate: Candidate, statement: str, model: str) -> Body:
    """Write the request of the Decisions API for the probability of a *statement* about *candidate*."""
    questions = [{"type": "predicate", "name": QUESTION, "instructions": statement}]
    return {"model": model, "input": _evidence(candidate), "questions": questions}


def _evidence(candidate: Candidate) -> str:
    """Write down what is judged, with the candidate's text last, so that requests of a run share a prefix."""
    problem = "\n\n".join(message.content for message in candidate.problem)
    steps = "".join(candidate.steps).strip()
    parts = (("Problem", problem), ("Reasoning", steps), ("Candidate", candidate.text.strip()))
    return "\n\n".join(f"{name}:\n{text}" for name, text in parts if text)


def predicated(call: Call, reply: Reply) -> Rating:
    """Read the answer of the Decisions API in *reply*: the probability of the statement. A refusal is no answer."""
    try:
        answer = reply["answers"][0]
        if answer["type"] == "refusal":
            raise call.error(MalformedReply, "the model declined to judge")
        return read_rating(answer["probability"])
    except (LookupError, TypeError, ValueError) as exc:
        raise call.error(MalformedReply, f"no decision in the reply: {exc}") from exc


def decided(call: Call, reply: Reply) -> Rating:
    """
    Read the decision in *reply*: the probability of yes over the whole vocabulary.

    vLLM's own value is the share of yes and no alone, which is high even if the model wanted to write neither.
    """
    try:
        share = cast("float", reply["answers"][QUESTION]["noul"])
        mass = cast("float", reply["diagnostics"][QUESTION]["label_mass"])
        return read_rating(share * min(1.0, mass))
    except (KeyError, TypeError, ValueError) as exc:
        raise call.error(MalformedReply, f"no decision in the reply: {exc}") from exc
