"""Policies: one file per paper. `METHODS` has them by name, `make` builds one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from stepspec.orchestrator import Critic, Model, Policy
from stepspec.orchestrator.errors import ConfigurationError, near
from stepspec.orchestrator.interfaces import PolicyFactory
from stepspec.orchestrator.registry import Registry
from stepspec.orchestrator.repetition import DEFAULT_GUARD, LoopGuard

from .baselines import RandomControl, Solo, large_alone, small_alone
from .bild import BiLD
from .cascade import Cascade
from .choose import Choose
from .glimpse import Glimpse
from .lookahead_reasoning import LookaheadReasoning
from .method import Method, Threshold, describe, read_method
from .reading import StepReading
from .reflective import Reflective
from .relay import Relay
from .reward import Reward
from .specreason import SpecReason
from .speculative_thinking import SpeculativeThinking
from .wrappers import Ending, Guarded, Led

__all__ = [
    "BASELINES",
    "METHODS",
    "BiLD",
    "Cascade",
    "Choose",
    "Ending",
    "Glimpse",
    "Guarded",
    "Led",
    "LookaheadReasoning",
    "Method",
    "RandomControl",
    "Reflective",
    "Relay",
    "Reward",
    "Solo",
    "SpecReason",
    "SpeculativeThinking",
    "StepReading",
    "Threshold",
    "check",
    "defaults",
    "make",
    "named",
    "threshold",
]

BUILT_IN: Mapping[str, Method] = {
    "large": Method(large_alone),
    "small": Method(small_alone),
    "specreason": Method(
        SpecReason,
        paper="SpecReason, arXiv:2504.07891",
        needs="probabilities of ten chosen tokens (large)",
        cost="one judge token of the large model; a rejected step is written again",
        threshold=Threshold("threshold", (9, 8.5, 8, 7.5, 7, 6, 5, 4, 3, 2, 1, 0)),
        prompts=("specreason.grade",),
        compared="threshold",
    ),
    "speculative-thinking": Method(
        SpeculativeThinking,
        paper="Speculative Thinking, arXiv:2504.12329",
        cost="nothing without a cue; with one, the small model's first words are written again",
        prompts=("speculative-thinking.recap",),
    ),
    "bild": Method(
        BiLD,
        paper="BiLD, arXiv:2302.07863",
        needs=(
            "the probability of every token as it is written (small) and of every token of a draft"
            " (large)"
        ),
        cost=(
            "the large model reads every ten tokens, each time with the whole chain where it cannot"
            " score a suffix"
        ),
        threshold=Threshold("rollback", (0, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10)),
        compared="rollback",
    ),
    "reading": Method(
        StepReading,
        paper="BiLD's rollback by the gap to the likeliest token, arXiv:2302.07863",
        needs=(
            "the probability of every token of a draft, and of the likeliest one in its place"
            " (large)"
        ),
        cost=(
            "the large model reads every twelve tokens, each time with the whole chain where it"
            " cannot score a suffix"
        ),
        threshold=Threshold("threshold", (0, 0.25, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10)),
        compared="threshold",
    ),
    "glimpse": Method(
        Glimpse,
        paper="GlimpRouter, arXiv:2601.05110",
        needs="the 20 likeliest tokens of every place (small)",
        cost="one token of the small model where the large one writes",
        threshold=Threshold("threshold", (0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1, 1.5, 2, 3)),
        compared="threshold",
    ),
    "cascade": Method(
        Cascade,
        paper="ConfSpec, arXiv:2602.18447",
        needs="probabilities of two chosen tokens (both)",
        cost=(
            "one judge token of the small model and, if in doubt, of the large one; a rejected step"
            " is written again"
        ),
        threshold=Threshold("sure", (1, 0.99, 0.97, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)),
        prompts=("check",),
        compared="threshold",
    ),
    "choose": Method(
        Choose,
        paper=(
            "Recursive speculative decoding, arXiv:2402.14160, and SpecTr, arXiv:2310.15141, at the"
            " level of steps"
        ),
        needs=(
            "the likeliest tokens of every place (small); probabilities of ten chosen tokens"
            " (large)"
        ),
        cost=(
            "SpecReason's; a rejected step's rivals take one short request of each model, before it"
            " is written again"
        ),
        prompts=("specreason.grade",),
        compared="threshold",
    ),
    "random": Method(
        RandomControl,
        cost="a rejected step is written again",
        threshold=Threshold("p", (0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)),
    ),
    "reflective": Method(
        Reflective,
        paper="Semantic Reflective Verification, arXiv:2505.18629",
        needs="log-probabilities of the draft with the likeliest tokens of each position (large)",
        cost=(
            "the large model reads the whole chain and the step twice; the rest of a rejected step"
            " is written again"
        ),
        prompts=("reflective.reflect",),
    ),
    "lookahead-reasoning": Method(
        LookaheadReasoning,
        paper="Lookahead Reasoning, arXiv:2506.19830",
        needs="probabilities of two chosen tokens (large)",
        cost=(
            "the large model writes every step as well, at the same time, and a judge token where"
            " the two differ"
        ),
        prompts=("lookahead-reasoning.same",),
    ),
    "reward": Method(
        Reward,
        paper="Reward-guided Speculative Decoding, arXiv:2501.19324",
        needs="a reward model on a server of its own, or a verifier of steps",
        cost="the reward model reads the chain; a rejected step is written again",
        threshold=Threshold("threshold", (1, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0)),
        compared="threshold",
    ),
    "relay": Method(
        Relay,
        paper="RelayGen, arXiv:2602.06454",
        needs="cues that suit the pair",
        cost="no judging; the large model still writes most of the tokens",
    ),
}

AUTO = "auto"
"""The name of the service's model that stands for its default method."""
METHODS = Registry(
    "policy",
    "policies",
    "stepspec.policies",
    BUILT_IN,
    read_method,
    frozenset({AUTO}),
)
"""The policies by name: built in, from plugins, and passed as a class by a program."""

BASELINES = ("large", "small")


def named(policy: str | PolicyFactory) -> str:
    """
    Return the name to choose *policy* by.

    A class or a function is added to `METHODS` under its own name. Raise `ConfigurationError` if it
    cannot build a policy.
    """
    if isinstance(policy, str):
        return policy
    return METHODS.add(policy)


def defaults(name: str) -> Mapping[str, Any]:
    """Return the default values of the options of the policy called *name*."""
    return {key: option.default for key, option in METHODS.find(name).options.items()}


def threshold(name: str, chosen: Mapping[str, Any]) -> tuple[str, float] | None:
    """
    Return the option that the scores of policy *name* are compared with, and its value.

    Return None if there is no such option.
    """
    option = METHODS.find(name).compared
    if not option:
        return None
    values = {**defaults(name), **chosen}
    return option, float(values[option])


def make(
    name: str,
    small: Model,
    large: Model,
    *,
    critic: Critic | None = None,
    sampled: bool = False,
    loop_guard: LoopGuard | None = DEFAULT_GUARD,
    **chosen: Any,
) -> Policy:
    """
    Build the policy called *name*.

    *sampled* says whether the models sample, at a temperature above 0. A policy with a field
    ``loop_guard`` gets *loop_guard*. Raise `ConfigurationError` for unknown names or options and
    for wrong values.
    """
    method = METHODS.find(name)
    options = dict(check(name, chosen, has_critic=critic is not None))
    if method.takes("critic"):
        options["critic"] = critic
    if method.takes("sampled"):
        options["sampled"] = sampled
    if method.takes("loop_guard"):
        options["loop_guard"] = loop_guard
    return method.build(small, large, **options)


def check(
    name: str,
    chosen: Mapping[str, Any],
    *,
    has_critic: bool = True,
) -> Mapping[str, Any]:
    """
    Return the *chosen* options, converted to their types.

    Raise `ConfigurationError` for an unknown name or option, for a wrong value, and for a policy
    that needs a critic where there is none. The policy is not built: if it rejects a combination of
    options, only `make` raises.
    """
    method = METHODS.find(name)
    known = method.options
    for option in chosen:
        if option not in known:
            listed = ", ".join(f"{p.name}={p.default!r}" for p in known.values()) or "none"
            raise ConfigurationError(
                f"policy {name!r} has no option {option!r}{near(option, known)}; its options:"
                f" {listed}",
                option=option,
            )
    checked = {
        option: _checked(name, option, method.kinds[option], value)
        for option, value in chosen.items()
    }
    if method.takes("critic") and not has_critic:
        raise ConfigurationError(
            f"policy {name!r} needs a reward model or a verifier of steps: pass --critic URL, or"
            " critic='http://HOST:PORT/v1' in Python, set STEPSPEC_CRITIC, or write a [critic]"
            ' table into stepspec.toml, of a verifier with judges = "step"'
        )
    return checked


def _checked(policy: str, option: str, kind: TypeAdapter[Any], value: object) -> Any:
    try:
        return kind.validate_python(value)
    except ValidationError as exc:
        message = f"policy {policy!r}, option {option!r}: {describe(kind)} (got {value!r})"
        raise ConfigurationError(message, option=option) from exc
