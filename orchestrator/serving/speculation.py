"""Token-level speculation under one model: how it is asked for, and what vLLM is told then. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self, TypeAlias, get_args

from pydantic import BaseModel, Field, PositiveInt, model_validator

Method: TypeAlias = Literal["none", "ngram", "suffix", "draft_model", "eagle3", "mtp", "medusa", "dflash"]

METHODS: tuple[str, ...] = get_args(Method)
TRAINED = frozenset({"eagle3", "medusa", "dflash"})  # for one large model each: nothing but its own drafter would do
DRAFTERS = TRAINED | {"draft_model", "mtp"}  # may name a model
TOKENS: Mapping[str, int] = {"ngram": 4, "draft_model": 4, "eagle3": 3, "mtp": 1}
SET_HERE = frozenset(
    {
        *("method", "num_speculative_tokens", "model", "revision", "use_heterogeneous_vocab"),
        *("prompt_lookup_min", "prompt_lookup_max"),
    }
)
LOOKUP = (2, 4)  # vLLM's own default, five tokens and no fewer, hardly ever finds anything within a step


class Speculation(BaseModel, frozen=True, extra="forbid"):
    """
    How a server drafts tokens for its own model, which then verifies several of them in one pass.

    A method alone may be given by its name. *tokens* are drafted at a time; *suffix* decides that itself, and takes
    them as the most. *model* drafts; with *draft_model* it is the pair's small model unless another one is named.
    *lookup* is for *ngram*: the fewest and the most tokens that have to be repeated. *heterogeneous* lets a
    *draft_model* have another vocabulary: vLLM then drafts only the tokens that both have. *more* are further keys of
    ``--speculative-config``.
    """

    method: Method = "none"
    tokens: PositiveInt | None = None
    model: str | None = Field(default=None, min_length=1)
    revision: str | None = None
    lookup: tuple[PositiveInt, PositiveInt] = LOOKUP
    heterogeneous: bool = False
    more: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        return {"method": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if wrong := next((said for is_wrong, said in self._rules() if is_wrong), None):
            raise ValueError(wrong)
        return self

    def _rules(self) -> tuple[tuple[bool, str], ...]:
        """What must not be, and what to change."""
        method, own = self.method, SET_HERE & set(self.more)
        return (
            (self.model is not None and method not in DRAFTERS, f"{method} drafts without a model: leave it out"),
            (self.model is None and method in TRAINED, f"{method} needs a drafter trained for this model: name it"),
            (self.tokens is None and method in ("medusa", "dflash"), f"say how many tokens {method} was trained for"),
            (self.revision is not None and self.model is None, "a revision is that of a model: name it"),
            (self.heterogeneous and method != "draft_model", "heterogeneous is for draft_model alone"),
            (self.lookup != LOOKUP and method != "ngram", "lookup is for ngram alone"),
            (self.lookup[0] > self.lookup[1], "lookup is the fewest tokens and then the most"),
            (
                method == "none" and bool(self.more or self.tokens),
                "there is no method: name one, or leave the rest out",
            ),
            (bool(own), f"more must not repeat what has a setting of its own: {', '.join(sorted(own))}"),
        )

    def configuration(self, drafter: str | None) -> dict[str, Any] | None:
        """Return vLLM's ``--speculative-config``; *drafter* drafts if no model is named. None for no speculation."""
        if self.method == "none":
            return None
        said: dict[str, Any] = {"method": self.method}
        tokens, model = self.tokens or TOKENS.get(self.method), self.model or drafter
        if tokens is not None:
            said["num_speculative_tokens"] = tokens
        if self.method == "ngram":
            said["prompt_lookup_min"], said["prompt_lookup_max"] = self.lookup
        if model is not None and (self.model or self.method == "draft_model"):
            said["model"] = model
        if self.revision is not None:
            said["revision"] = self.revision
        if self.heterogeneous:
            said["use_heterogeneous_vocab"] = True
        return {**said, **self.more}
