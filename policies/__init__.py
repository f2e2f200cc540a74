"""One file per paper, found by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from ..orchestrator import Critic, Model, Policy
from ..orchestrator.errors import ConfigurationError
from .bild import BiLD
from .cascade import Cascade
from .choose import Choose
from .glimpse import Glimpse
from .lead import Led
from .lookahead_reasoning import LookaheadReasoning
from .lot import Lot
from .reflective import Reflective
from .relay import Relay
from .reward import Reward
from .solo import Solo, large_alone, small_alone
from .specreason import SpecReason
from .speculative_thinking import SpeculativeThinking

__all__ = [
    "BASELINES",
    "METHODS",
    "BiLD",
    "Cascade",
    "Choose",
    "Glimpse",
    "Led",
    "LookaheadReasoning",
    "Lot",
    "Method",
    "Reflective",
    "Relay",
    "Reward",
    "Solo",
    "SpecReason",
    "SpeculativeThinking",
    "make",
    "options",
]


@dataclass(frozen=True, slots=True)
class Method:
    """
    One policy as users choose it: how to *build* it and the *paper* it comes from.

    *needs* says what it asks of the endpoints beyond writing, *cost* what that adds to every step.
    """

    build: Callable[..., Policy]
    paper: str = ""
    needs: str = ""
    cost: str = ""

    @property
    def about(self) -> str:
        """The first line of its documentation."""
        return (inspect.getdoc(self.build) or "").partition("\n")[0]

    @property
    def needs_critic(self) -> bool:
        return "critic" in inspect.signature(self.build).parameters


METHODS: Mapping[str, Method] = {
    "large": Method(large_alone),
    "small": Method(small_alone),
    "specreason": Method(
        SpecReason,
        paper="SpecReason, arXiv:2504.07891",
        needs="probabilities of ten chosen tokens (large)",
        cost="one judge token of the large model; a rejected step is written again",
    ),
    "speculative-thinking": Method(
        SpeculativeThinking,
        paper="Speculative Thinking, arXiv:2504.12329",
        cost="nothing without a cue; with one, the small model's first words are written again",
    ),
    "bild": Method(
        BiLD,
        paper="BiLD, arXiv:2302.07863",
        needs="the probability of every token as it is written (small) and of a given text's (large)",
        cost="the large model reads every ten tokens, each time with the whole chain where it cannot score a suffix",
    ),
    "glimpse": Method(
        Glimpse,
        paper="GlimpRouter, arXiv:2601.05110",
        needs="the 20 likeliest tokens of every place (small)",
        cost="one token of the small model where the large one writes",
    ),
    "cascade": Method(
        Cascade,
        paper="ConfSpec, arXiv:2602.18447",
        needs="probabilities of two chosen tokens (both)",
        cost="one judge token of the small model and, if in doubt, of the large one; a rejected step is written again",
    ),
    "choose": Method(
        Choose,
        paper="Recursive speculative decoding, arXiv:2402.14160, and SpecTr, arXiv:2310.15141, at the level of steps",
        needs="the likeliest tokens of every place (small); probabilities of ten chosen tokens (large)",
        cost="SpecReason's; a rejected step's rivals take one short request of each model, before it is written again",
    ),
    "random": Method(
        Lot,
        cost="a rejected step is written again",
    ),
    "reflective": Method(
        Reflective,
        paper="Semantic Reflective Verification, arXiv:2505.18629",
        needs="log-probabilities of a given text with the likeliest tokens of each place (large)",
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
    ),
    "relay": Method(
        Relay,
        paper="RelayGen, arXiv:2602.06454",
        needs="cues that suit the pair, from `stepspec profile`",
        cost="no judging; the large model still writes most of the tokens",
    ),
}


BASELINES = ("large", "small")
LEAD = "first steps by the large model are no method's own: pass lead=N, or --lead N"


def options(name: str) -> Mapping[str, inspect.Parameter]:
    """The options of the policy called *name*, with their defaults and annotations."""
    parameters = inspect.signature(_find(name).build).parameters
    return {key: value for key, value in parameters.items() if key not in ("small", "large", "critic")}


def make(name: str, small: Model, large: Model, *, critic: Critic | None = None, **chosen: Any) -> Policy:
    """Build the policy called *name*. Raise `ConfigurationError` for unknown names or options and for wrong values."""
    method, known = _find(name), options(name)
    for option in chosen:
        if option not in known:
            listed = ", ".join(f"{p.name}={p.default!r}" for p in known.values()) or "none"
            hint = f" ({LEAD})" if option == "first" else _near(option, known)
            raise ConfigurationError(f"policy {name!r} has no option {option!r}{hint}; its options: {listed}")
    hints = get_type_hints(method.build)
    models: dict[str, Any] = {"small": small, "large": large}
    if method.needs_critic:
        if critic is None:
            raise ConfigurationError(
                f"policy {name!r} needs a reward model: pass critic='http://HOST:PORT/v1', set STEPSPEC_CRITIC, "
                "or write a [critic] table with its url into stepspec.toml"
            )
        models["critic"] = critic
    return method.build(**models, **{key: _checked(name, key, hints[key], chosen[key]) for key in chosen})


def _checked(policy: str, option: str, kind: Any, value: object) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as exc:
        wrong = "; ".join(error["msg"] for error in exc.errors())
        raise ConfigurationError(f"policy {policy!r}, option {option!r}: {wrong} (got {value!r})") from exc


def _find(name: str) -> Method:
    if name not in METHODS:
        raise ConfigurationError(
            f"there is no policy {name!r}{_near(name, METHODS)}; the policies: {', '.join(METHODS)}"
        )
    return METHODS[name]


def _near(word: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {close[0]!r}?" if close else ""
