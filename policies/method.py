"""
What a policy that users choose by name consists of, and how a plugin's class becomes one.

The types of options check their values, and are described to users in words.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, TypeAlias, cast, get_type_hints

from pydantic import Field, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError

from stepspec.orchestrator import Chain, Model, Rollback, Step
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.interfaces import PolicyFactory, Until
from stepspec.orchestrator.registry import behind
from stepspec.orchestrator.run_options import Share as Share
from stepspec.prompts import known

MAX_TOP_TOKENS = 20
"""Likeliest tokens of one position. vLLM returns more only with the flag ``--max-logprobs``."""

Above0: TypeAlias = Annotated[float, Field(gt=0, le=1)]
Amount: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AtLeast1: TypeAlias = Annotated[int, Field(ge=1)]
Grade: TypeAlias = Annotated[float, Field(ge=0, le=9)]
NotEmpty: TypeAlias = Annotated[str, Field(min_length=1)]
Several: TypeAlias = Annotated[int, Field(ge=2, le=MAX_TOP_TOKENS)]
Texts: TypeAlias = Annotated[tuple[NotEmpty, ...], Field(min_length=1)]
Top: TypeAlias = Annotated[int, Field(ge=1, le=MAX_TOP_TOKENS)]

NOT_OPTIONS = frozenset({"small", "large", "critic", "sampled", "loop_guard"})
"""The parameters of a policy that are no options: stepspec sets them."""
PARTS = ("draft", "verify", "repair", "answerer")
NOUNS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list of texts",
}
SENTENCE_ENDS = re.compile(r"(?<=\.)\s+(?=[A-Z*])|\n\n")


@dataclass(frozen=True, slots=True)
class Drafting:
    """The small model drafts every step, and the large one repairs and answers."""

    small: Model
    """Drafts."""
    large: Model
    """Repairs and answers. Most methods judge with it, too."""

    @property
    def answerer(self) -> Model:
        return self.large

    async def draft(self, chain: Chain) -> Step:
        return await self.small.write(chain)

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        return await self.large.write(chain)

    async def write_run(
        self,
        chain: Chain,
        tokens: int | None,
        *,
        until: Until = None,
        top: int = 0,
    ) -> Step:
        """
        Let the small model write at most *tokens* tokens, across the ends of steps.

        None: let it write a step.
        """
        if tokens is None:
            return await self.small.write(chain, until=until, top=top)
        return await self.small.write(chain, stop=(), limit=tokens, until=until, top=top)

    async def take_over(self, chain: Chain, tokens: int | None) -> Step:
        """
        Let the large model write *tokens* tokens, and more if they are only a part of a character.

        None: let it write the rest of the step.
        """
        if tokens is None:
            return await self.large.write(chain)
        written = await self.large.write(chain, stop=(), limit=tokens)
        if written.text or written.stop == "end":
            return written
        return await self.large.write(
            chain,
            stop=(),
            until=lambda partial: bool(partial.text),
        )


@dataclass(frozen=True, slots=True)
class Threshold:
    """What makes a policy stricter or looser."""

    option: str
    """The name of the option."""
    values: tuple[float, ...]
    """The values to try, the strictest first."""


@dataclass(frozen=True, slots=True)
class Option:
    """The description of an option."""

    default: Any
    """Its default."""
    values: str
    """Its valid values, in words."""
    means: str
    """What it means."""


@dataclass(frozen=True)
class Method:
    """A policy that users can choose by name."""

    build: PolicyFactory
    """
    Builds the policy. Lists show the first line of its documentation.

    Sentences of that documentation that name an ``*option*`` so explain it.
    """
    paper: str = ""
    """The name of the paper and its number."""
    needs: str = ""
    """What the endpoints have to support beyond writing."""
    cost: str = ""
    """What the method adds to every step."""
    threshold: Threshold | None = None
    """What `stepspec calibrate` moves; None: it cannot."""
    prompts: tuple[str, ...] = ()
    """
    The names of the prompts that decide what the method does.

    A calibration holds only for the same texts.
    """
    compared: str = ""
    """
    The option that the scores of verdicts are compared with; "" if there is none.

    The page of a run draws the scores against its value.
    """

    @property
    def source(self) -> object:
        """The class or function that builds the policy, without arguments that are bound to it."""
        return behind(self.build)

    @property
    def documentation(self) -> str:
        return inspect.getdoc(self.source) or ""

    @property
    def about(self) -> str:
        """The first paragraph of its documentation, as one line."""
        return " ".join(self.documentation.partition("\n\n")[0].split())

    def takes(self, parameter: str) -> bool:
        """Whether *build* has this *parameter*."""
        return parameter in self._parameters

    @cached_property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.build).parameters

    @cached_property
    def options(self) -> Mapping[str, inspect.Parameter]:
        """The options, with their defaults and annotations."""
        return {key: value for key, value in self._parameters.items() if key not in NOT_OPTIONS}

    @cached_property
    def kinds(self) -> Mapping[str, TypeAdapter[Any]]:
        """What checks the values of each option."""
        hints = get_type_hints(cast("Callable[..., Any]", self.source), include_extras=True)
        return {option: TypeAdapter(hints[option]) for option in self.options}

    def describe_options(self) -> Mapping[str, Option]:
        return {
            key: Option(
                option.default,
                describe(self.kinds[key]),
                meaning(self.documentation, key),
            )
            for key, option in self.options.items()
        }


def read_method(name: str, value: object) -> Method:
    """
    Return the method called *name*. *value* is a `Method`, or builds a policy.

    Raise `ConfigurationError` for a value that cannot build a policy, or that has an option that no
    user could set.
    """
    if not (callable(value) or isinstance(value, Method)):
        raise ConfigurationError(
            f"{value!r} is neither a policy's class, nor a function that builds one, nor a Method"
        )
    method = value if isinstance(value, Method) else Method(cast("PolicyFactory", value))
    _check_parts(name, method)
    _check_options(name, method)
    for option in (method.threshold.option if method.threshold else "", method.compared):
        if option and option not in method.options:
            raise ConfigurationError(f"{name}: the threshold {option!r} is none of its options")
    if unknown := sorted(set(method.prompts) - set(known())):
        raise ConfigurationError(
            f"{name}: there is no prompt {unknown[0]!r}: load it in the policy's module"
        )
    return method


def _check_parts(name: str, method: Method) -> None:
    build = method.build
    missing = [part for part in PARTS if isinstance(build, type) and not hasattr(build, part)]
    if missing:
        raise ConfigurationError(f"{name} is no policy: it has no {', '.join(missing)}")
    if not (method.takes("small") and method.takes("large")):
        raise ConfigurationError(
            f"{name} has to take the parameters small and large, the two models"
        )


def _check_options(name: str, method: Method) -> None:
    for key, option in method.options.items():
        if option.kind in (option.VAR_POSITIONAL, option.VAR_KEYWORD, option.POSITIONAL_ONLY):
            raise ConfigurationError(f"{name}: {option} cannot be set by name: name every option")
        if option.default is option.empty:
            raise ConfigurationError(f"{name}: the option {key!r} has no default")
        if option.annotation is option.empty:
            raise ConfigurationError(
                f"{name}: the option {key!r} has no type, which its values are checked by"
            )
    try:
        method.describe_options()
    except (NameError, PydanticSchemaGenerationError) as exc:
        raise ConfigurationError(f"{name}: the type of an option cannot be used: {exc}") from exc


def describe(kind: TypeAdapter[Any]) -> str:
    """Describe the values that *kind* accepts: "a number from 0 to 9"."""
    return _describe(kind.json_schema())


def _describe(schema: Mapping[str, Any]) -> str:
    kind: str = schema.get("type", "")
    noun = NOUNS.get(kind, kind)
    match schema:
        case {"anyOf": kinds}:
            return " or ".join(map(_describe, kinds))
        case {"enum": words}:
            return " or ".join(map(repr, words))
        case {"minimum": least, "maximum": most}:
            return f"{noun} from {least:g} to {most:g}"
        case {"exclusiveMinimum": least, "maximum": most}:
            return f"{noun} above {least:g}, {most:g} at most"
        case {"minimum": least}:
            return f"{noun} of {least:g} or more"
        case {"items": {"minLength": 1}, "minItems": 1}:
            return f"{noun}, at least one and none empty"
        case _:
            return noun


def meaning(documentation: str, option: str) -> str:
    """Return the sentences of *documentation* that have the name of *option* between asterisks."""
    sentences = (" ".join(sentence.split()) for sentence in SENTENCE_ENDS.split(documentation))
    return " ".join(sentence for sentence in sentences if f"*{option}*" in sentence)
