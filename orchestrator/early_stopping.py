"""
Stop rules end the thinking early. A stop rule works with any policy; `STOP_RULES` has them by name.

A stop rule checks every committed chain while the next step is drafted and judged, so it delays no draft. The next step
is committed only after the check is over. So the thinking ends at the same step at any lookahead, and however long a
check takes. A check that takes longer than *patience* seconds, or whose model fails, does not end the thinking.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias, cast

from .answer import boxed, close
from .chain import Chain, Step
from .concurrency import to_the_end
from .errors import ConfigurationError, EndpointError
from .interfaces import Model, RequestContext, requesting
from .lookahead import confidence
from .registry import Registry

PATIENCE = 10.0  # seconds


class StopRule(Protocol):
    """Checks the chains of one run, one after the other; each extends the one before."""

    async def __call__(self, chain: Chain) -> bool:
        """Return whether the thinking ends with *chain* and the answer follows. An `EndpointError` means no."""
        ...


StopRuleFactory: TypeAlias = Callable[[Model], StopRule]
"""A stop rule's class, or a function that builds one for one run: of the large model."""


class StopRuleRunner:
    """Runs a stop rule in the background, on one chain at a time."""

    def __init__(self, rule: StopRule | None, patience: float) -> None:
        self._rule, self._patience = rule, patience
        self._check: asyncio.Task[bool] | None = None

    def start(self, chain: Chain) -> None:
        """Start to check *chain*, which was just committed. The check before has to be over (see `stops`)."""
        if self._rule is not None and not (chain.finished or chain.closed):
            self._check = asyncio.create_task(self._run(self._rule, chain))

    async def stops(self) -> bool:
        """Wait for the check that was started last; return whether it ends the thinking."""
        return self._check is not None and await self._check

    async def close(self) -> None:
        """Cancel the check that is still running, and wait until it is gone."""
        if self._check is not None:
            self._check.cancel()
            await asyncio.wait([self._check])
            if not self._check.cancelled():
                self._check.exception()  # Nobody waits for this result: reading it silences asyncio's warning.

    async def _run(self, rule: StopRule, chain: Chain) -> bool:
        timeout = asyncio.timeout(self._patience)
        try:
            with requesting(RequestContext("watch", len(chain.steps) - 1)):
                async with timeout:
                    return await rule(chain)
        except EndpointError:
            return False
        except TimeoutError:
            if not timeout.expired():
                raise
            return False


@asynccontextmanager
async def running_stop_rule(rule: StopRule | None, patience: float = PATIENCE) -> AsyncGenerator[StopRuleRunner]:
    """Run *rule*, if it is not None, in the background. Leaving the block cancels its check and waits for that."""
    runner = StopRuleRunner(rule, patience)
    try:
        yield runner
    finally:
        await to_the_end(runner.close())


TRIAL = "\n\n\\boxed{"
CUES = re.compile(
    r"\s*(?:wait|alternatively|hmm|hold on|let me (?:double-?)?(?:check|verify)|(?:so|therefore|thus|yes),?)\b", re.I
)


@dataclass(eq=False)
class TrialAnswer:
    """
    End the thinking when the model is *sure* of a trial answer, or has given the same one *times* in a row.

    After a paragraph that opens with a cue, and after every *every*-th step (0: never), *author* closes the thinking
    and writes what goes into the box, at most *limit* tokens. Its probability is the geometric mean of those of its
    tokens. After DEER (github.com/iie-ycx/DEER: transitions like "Wait", probability 0.95) and Dynasor
    (github.com/hao-ai-lab/Dynasor: a trial every few steps, the same answer again and again). Deviations: the trial
    comes after the paragraph that the cue opens, not instead of it, because that paragraph is already written; neither
    of their tests for a model that wants to stop by itself is used.

    Trials are not part of the chain: their tokens count as discarded. Raise `ConfigurationError` for impossible values.
    """

    author: Model
    sure: float = 0.95
    times: int = 3
    every: int = 0
    limit: int = 48
    _answers: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        if not 0 < self.sure <= 1 or self.times < 2 or self.every < 0 or self.limit < 1:
            raise ConfigurationError(
                f"trial answers: sure={self.sure} has to be above 0 and at most 1, times={self.times} at least 2, "
                f"every={self.every} at least 0, limit={self.limit} at least 1"
            )

    async def __call__(self, chain: Chain) -> bool:
        if not self._due(chain):
            return False
        trial = await self.author.write(
            close(chain, self.author), stop=(), limit=self.limit, until=_complete, opening=TRIAL, top=1
        )
        self._answers.append(" ".join((boxed(trial.text) or "").split()))
        last = self._answers[-self.times :]
        if not last[-1]:
            return False
        return _probability(trial) >= self.sure or last == last[-1:] * self.times

    def _due(self, chain: Chain) -> bool:
        if not chain.steps or chain.steps[-1].stop != "delimiter":
            return False
        return bool(CUES.match(chain.steps[-1].text)) or bool(self.every and len(chain.steps) % self.every == 0)


def _complete(trial: Step) -> bool:
    return boxed(trial.text) is not None


def _probability(trial: Step) -> float:
    """The geometric mean of the probabilities of the tokens after the opening; 0 if there are none."""
    length = 0
    for place, token in enumerate(trial.tokens):
        length += len(token.text)
        if length > len(TRIAL):
            return confidence(replace(trial, tokens=trial.tokens[place:]))
    return 0.0


def read_stop_rule(name: str, value: object) -> StopRuleFactory:
    """Return *value* as what builds a stop rule. Raise `ConfigurationError` if it takes anything but one model."""
    if not callable(value):
        raise ConfigurationError(f"{value!r} is neither a stop rule's class nor a function that builds one")
    try:
        inspect.signature(value).bind(None)
    except TypeError as exc:
        raise ConfigurationError(f"{name} has to take one argument, the large model: {exc}") from exc
    return cast("StopRuleFactory", value)


BUILT_IN: Mapping[str, StopRuleFactory] = {"trial-answer": TrialAnswer}
STOP_RULES = Registry("stop rule", "stop rules", "stepspec.stop_rules", BUILT_IN, read_stop_rule)
"""The stop rules by name: those above, those of plugins, and those that a program passed as a class."""


def named(rule: str | StopRuleFactory) -> str:
    """Return the name to choose *rule* by; a class or function is added to `STOP_RULES` under its own name."""
    return rule if isinstance(rule, str) else STOP_RULES.add(rule)
