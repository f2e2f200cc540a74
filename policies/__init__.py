"""Policies: one file per paper. `METHODS` has them by name, `make` builds one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from stepspec.orchestrator import Critic, Model, Policy
from stepspec.orchestrator.errors import ConfigurationError, near
from stepspec.orchestrator.feedback.adaptation import Adaptable

from .bild import BiLD
from .cascade import Cascade
from .choose import Choose
from .glimpse import Glimpse
from .lookahead_reasoning import LookaheadReasoning
from .option_types import THRESHOLDS, describe, meaning
from .random_control import RandomControl
from .reflective import Reflective
from .relay import Relay
from .reward import Reward
from .solo import Solo, large_alone, small_alone
from .specreason import SpecReason
from .speculative_thinking import SpeculativeThinking
from .wrappers import Ending, Led

__all__ = [
    "BASELINES",
    "METHODS",
    "BiLD",
    "Cascade",
    "Choose",
    "Ending",
    "Glimpse",
    "Led",
    "LookaheadReasoning",
    "Method",
    "Option",
    "RandomControl",
    "Reflective",
    "Relay",
    "Reward",
    "Solo",
    "SpecReason",
    "SpeculativeThinking",
    "adaptable",
    "check",
    "defaults",
    "describe_options",
    "make",
    "options",
    "threshold",
]


@dataclass(frozen=True, slots=True)
class Method:
    """
    A policy that users can choose by name: how to *build* it, and its *paper*.

    *needs* says what the endpoints must support beyond writing, *cost* what the method adds to every step. *compared*
    names the option that the scores of its verdicts are compared with; "" if there is none.
    """

    build: Callable[..., Policy]
    paper: str = ""
    needs: str = ""
    cost: str = ""
    compared: str = ""

    @property
    def documentation(self) -> str:
        return inspect.getdoc(self.build) or ""

    @property
    def about(self) -> str:
        """The first line of its documentation."""
        return self.documentation.partition("\n")[0]

    @property
    def needs_critic(self) -> bool:
        return self.takes("critic")

    def takes(self, parameter: str) -> bool:
        """Whether *build* has this *parameter*."""
        return parameter in inspect.signature(self.build).parameters


@dataclass(frozen=True, slots=True)
class Option:
    """The description of an option: its *default*, its valid *values* in words, and what it *means*."""

    default: Any
    values: str
    means: str


METHODS: Mapping[str, Method] = {
    "large": Method(large_alone),
    "small": Method(small_alone),
    "specreason": Method(
        SpecReason,
        paper="SpecReason, arXiv:2504.07891",
        needs="probabilities of ten chosen tokens (large)",
        cost="one judge token of the large model; a rejected step is written again",
        compared="threshold",
    ),
    "speculative-thinking": Method(
        SpeculativeThinking,
        paper="Speculative Thinking, arXiv:2504.12329",
        cost="nothing without a cue; with one, the small model's first words are written again",
    ),
    "bild": Method(
        BiLD,
        paper="BiLD, arXiv:2302.07863",
        needs="the probability of every token as it is written (small) and of every token of a draft (large)",
        cost="the large model reads every ten tokens, each time with the whole chain where it cannot score a suffix",
        compared="rollback",
    ),
    "glimpse": Method(
        Glimpse,
        paper="GlimpRouter, arXiv:2601.05110",
        needs="the 20 likeliest tokens of every place (small)",
        cost="one token of the small model where the large one writes",
        compared="threshold",
    ),
    "cascade": Method(
        Cascade,
        paper="ConfSpec, arXiv:2602.18447",
        needs="probabilities of two chosen tokens (both)",
        cost="one judge token of the small model and, if in doubt, of the large one; a rejected step is written again",
        compared="threshold",
    ),
    "choose": Method(
        Choose,
        paper="Recursive speculative decoding, arXiv:2402.14160, and SpecTr, arXiv:2310.15141, at the level of steps",
        needs="the likeliest tokens of every place (small); probabilities of ten chosen tokens (large)",
        cost="SpecReason's; a rejected step's rivals take one short request of each model, before it is written again",
        compared="threshold",
    ),
    "random": Method(
        RandomControl,
        cost="a rejected step is written again",
    ),
    "reflective": Method(
        Reflective,
        paper="Semantic Reflective Verification, arXiv:2505.18629",
        needs="log-probabilities of the draft with the likeliest tokens of each position (large)",
        cost="the large model reads the whole chain and the step twice; the rest of a rejected step is written again",
    ),
    "lookahead-reasoning": Method(
        LookaheadReasoning,
        paper="Lookahead Reasoning, arXiv:2506.19830",
        needs="probabilities of two chosen tokens (large)",
        cost="the large model writes every step as well, at the same time, and a judge token where the two differ",
    ),
    "reward": Method(
        Reward,
        paper="Reward-guided Speculative Decoding, arXiv:2501.19324",
        needs="a reward model on a server of its own",
        cost="the reward model reads the chain; a rejected step is written again",
        compared="threshold",
    ),
    "relay": Method(
        Relay,
        paper="RelayGen, arXiv:2602.06454",
        needs="cues that suit the pair, from `stepspec profile`",
        cost="no judging; the large model still writes most of the tokens",
    ),
}


BASELINES = ("large", "small")
NOT_OPTIONS = frozenset({"small", "large", "critic", "sampled"})  # what a policy is built over
ELSEWHERE: Mapping[str, str] = {
    "first": "first steps by the large model are no method's own: pass lead=N, or --lead N",
    "plan": "retired, because it showed no gain: leave it out",
    "give_up": "retired, because it showed no gain: leave it out",
    "answers": "who writes the answer is an option of the run: pass answer='large', or --answer large",
}


def options(name: str) -> Mapping[str, inspect.Parameter]:
    """The options of the policy called *name*, with their defaults and annotations."""
    return _parameters(_find(name).build)


@cache
def _parameters(build: Callable[..., Policy]) -> Mapping[str, inspect.Parameter]:
    parameters = inspect.signature(build).parameters
    return {key: value for key, value in parameters.items() if key not in NOT_OPTIONS}


def defaults(name: str) -> Mapping[str, Any]:
    """The default values of the options of the policy called *name*."""
    return {key: option.default for key, option in options(name).items()}


def adaptable(name: str, chosen: Mapping[str, Any]) -> Adaptable | None:
    """
    What `adapt` may change of the policy called *name* with its *chosen* options; None for a baseline.

    The grades of some drafts say nothing about those that `skip` leaves unjudged: then only the depth is adapted.
    """
    if name in BASELINES:
        return None
    threshold = None if chosen.get("skip") else THRESHOLDS.get(name)
    return Adaptable(threshold, defaults(name)[threshold.option]) if threshold else Adaptable()


def threshold(name: str, chosen: Mapping[str, Any]) -> tuple[str, float] | None:
    """The option that the scores of the policy called *name* are compared with, and its value; None without one."""
    option = _find(name).compared
    return (option, float({**defaults(name), **chosen}[option])) if option else None


def make(
    name: str, small: Model, large: Model, *, critic: Critic | None = None, sampled: bool = False, **chosen: Any
) -> Policy:
    """
    Build the policy called *name*; *sampled* says whether the models sample, at a temperature above 0.

    Raise `ConfigurationError` for unknown names or options and for wrong values.
    """
    method, checked = _find(name), _options(name, chosen, has_critic=critic is not None)
    parts = {"critic": critic, "sampled": sampled}
    return method.build(small, large, **{part: parts[part] for part in parts if method.takes(part)}, **checked)


def check(name: str, chosen: Mapping[str, Any], *, has_critic: bool = True) -> Mapping[str, Any]:
    """
    Return the *chosen* options, converted to their types. Raise `ConfigurationError` as `make` would.

    Unless *has_critic*, a policy that needs a reward model is rejected too.
    """
    checked = _options(name, chosen, has_critic=has_critic)
    no_models = dict.fromkeys(set(inspect.signature(_find(name).build).parameters) - set(options(name)))
    _find(name).build(**no_models, **checked)  # It may reject a combination of options.
    return checked


def _options(name: str, chosen: Mapping[str, Any], *, has_critic: bool) -> Mapping[str, Any]:
    """Check the *chosen* options one by one, without building the policy."""
    method, known, kinds = _find(name), options(name), _kinds(name)
    for option in chosen:
        if option not in known:
            listed = ", ".join(f"{p.name}={p.default!r}" for p in known.values()) or "none"
            hint = f" ({ELSEWHERE[option]})" if option in ELSEWHERE else near(option, known)
            message = f"policy {name!r} has no option {option!r}{hint}; its options: {listed}"
            raise ConfigurationError(message, option=option)
    checked = {key: _checked(name, key, kinds[key], value) for key, value in chosen.items()}
    if method.needs_critic and not has_critic:
        raise ConfigurationError(
            f"policy {name!r} needs a reward model, which no pair within another has: pass "
            "critic='http://HOST:PORT/v1', set STEPSPEC_CRITIC, or write a [critic] table with its url into "
            "stepspec.toml"
        )
    return checked


def describe_options(name: str) -> Mapping[str, Option]:
    """Describe the options of the policy called *name*."""
    method, kinds = _find(name), _kinds(name)
    return {
        key: Option(option.default, describe(kinds[key]), meaning(method.documentation, key))
        for key, option in options(name).items()
    }


@cache
def _kinds(name: str) -> Mapping[str, TypeAdapter[Any]]:
    hints = get_type_hints(_find(name).build, include_extras=True)
    return {option: TypeAdapter(hints[option]) for option in options(name)}


def _checked(policy: str, option: str, kind: TypeAdapter[Any], value: object) -> Any:
    try:
        return kind.validate_python(value)
    except ValidationError as exc:
        message = f"policy {policy!r}, option {option!r}: {describe(kind)} (got {value!r})"
        raise ConfigurationError(message, option=option) from exc


def _find(name: str) -> Method:
    if name not in METHODS:
        raise ConfigurationError(
            f"there is no policy {name!r}{near(name, METHODS)}; the policies: {', '.join(METHODS)}"
        )
    return METHODS[name]
