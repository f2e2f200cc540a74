"""The answer of a run: judged once it is written, and rewritten by the large model while it is rejected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..answer import answer_text
from ..chain import Chain, Step
from ..events import AnswerJudged, Observer
from ..interfaces import Model, RequestContext, requesting
from .verifier import Verifier


@dataclass(frozen=True, slots=True)
class CheckedAnswer:
    """
    An answer: the *step* and its *text*, which *chain* ends with.

    *verified* says whether it was accepted; None if nobody judged it. *rejection* is the reason if it was not. With
    *committed* its steps are part of the chain already.
    """

    chain: Chain
    step: Step
    text: str
    committed: bool = False
    verified: bool | None = None
    rejection: str = ""


@dataclass(frozen=True, slots=True)
class AnswerCheck:
    """
    The *verifier* of a run's answer, and *author*, who rewrites it if it is rejected, at most *repairs* times.

    The author reads its thinking, the rejected answer, and the *note* that is made of the reason.
    """

    verifier: Verifier
    author: Model
    note: Callable[[str], str]
    repairs: int

    async def run(
        self,
        answer: CheckedAnswer,
        index: int,
        left: Callable[[Chain], int],
        stop: Sequence[str],
        observe: Observer,
        keep: Callable[[CheckedAnswer], None],
    ) -> None:
        """
        Judge *answer*, at the place *index* of the chain; rewrite it while it is rejected and there are tokens *left*.

        *keep* receives what is known by then after every verdict and every new answer, so that a deadline may pass.
        """
        for repairs in range(self.repairs, -1, -1):
            with requesting(RequestContext("verify", index)):
                judged = await self.verifier.judge_answer(answer.chain, answer.text)
            verified = None if judged.accepted and judged.rating is None else judged.accepted
            rejection = "" if judged.accepted else judged.reason
            noted = answer.chain.extend(Step(self.note(judged.reason), self.author.role))
            limit = left(noted) if repairs and not judged.accepted else 0
            score = judged.rating.score if judged.rating else None
            observe(AnswerJudged(index, answer.step, verified, score, judged.reason, final=limit < 1))
            keep(answer := replace(answer, verified=verified, rejection=rejection))
            if limit < 1:
                return
            with requesting(RequestContext("answer", index)):
                step = await self.author.write(noted, stop=stop, limit=limit)
            if not (text := answer_text(step.text, stop, thought=True)):
                return
            keep(answer := CheckedAnswer(noted.extend(step), step, text))
