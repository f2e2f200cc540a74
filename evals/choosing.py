"""Arms as a command line names them: ``specreason``, ``bild:scale=step,ahead=0``, or a policy file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from .. import policies
from ..orchestrator.errors import ConfigurationError
from .arms import LARGE, SMALL
from .trial import Arm

CONTROL = "random"
SOLVERS = (  # what a solver is told besides its policy
    "ahead", "hedge", "lead", "plan", "early_exit", "give_up", "sure_bets", "adapt",
)  # fmt: skip
BASELINES: Mapping[str, Arm] = {"large": LARGE, "small": SMALL}
_ADAPTER: TypeAdapter[Arm] = TypeAdapter(Arm)


def arms(chosen: Sequence[str], baselines: Sequence[str], controls: Sequence[str]) -> tuple[Arm, ...]:
    """
    The large model alone, the other *baselines*, the *chosen* methods, and *controls* of some of these.

    Raise `ConfigurationError` for what does not exist, and for what is there twice.
    """
    unknown = [name for name in baselines if name not in BASELINES]
    if unknown:
        raise ConfigurationError(f"no such baseline: {unknown[0]!r}; there are {' and '.join(BASELINES)}")
    methods = [arm(spec) for spec in chosen]
    others = [BASELINES[name] for name in dict.fromkeys(baselines) if name != "large"]
    found = (LARGE, *others, *methods, *(control(name, methods) for name in controls))
    names = [one.name for one in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigurationError(f"the arm {twice.pop()!r} is there twice")
    return found


def arm(spec: str) -> Arm:
    """Read one method: its name with options after a colon, or a policy file, as ``stepspec calibrate`` writes it."""
    if spec.endswith(".toml"):
        return _from_file(Path(spec))
    policy, _, rest = spec.partition(":")
    pairs = [part.partition("=") for part in rest.split(",")] if rest else []
    for name, equals, _ in pairs:
        if not equals:
            raise ConfigurationError(f"{spec!r}: write options as NAME=VALUE after the colon, with commas between them")
        _known(policy, name.strip())
    return _arm(spec, policy, {name.strip(): _value(value) for name, _, value in pairs})


def _from_file(path: Path) -> Arm:
    """Take from a settings file what makes an arm, and leave the rest, such as URLs."""
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as exc:
        raise ConfigurationError(f"no policy file at {path}: {exc}") from exc
    if "policy" not in settings:
        raise ConfigurationError(f'{path} names no policy; write one as in policy = "specreason"')
    options = {name: settings[name] for name in SOLVERS if name in settings}
    return _arm(path.stem, settings["policy"], {**settings.get("options", {}), **options})


def _arm(name: str, policy: str, options: Mapping[str, Any]) -> Arm:
    own = {key: value for key, value in options.items() if key not in SOLVERS}
    solvers = {key: value for key, value in options.items() if key in SOLVERS}
    for key in own:
        _known(policy, key)
    policies.options(policy)  # raises for a name that is none
    try:
        return _ADAPTER.validate_python({"name": name, "policy": policy, "options": own, **solvers})
    except ValidationError as exc:
        wrong = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in exc.errors())
        raise ConfigurationError(f"{name!r}: {wrong}") from exc


def _known(policy: str, option: str) -> None:
    if option not in SOLVERS and option not in policies.options(policy):
        listed = ", ".join((*policies.options(policy), *SOLVERS))
        raise ConfigurationError(f"policy {policy!r} has no option {option!r}; there are {listed}")


def control(name: str, methods: Sequence[Arm]) -> Arm:
    """Random acceptance as often as the arm *name* accepts."""
    for method in methods:
        if method.name == name:
            return replace(method, name=f"{CONTROL} like {name}", policy=CONTROL, options={}, like=name)
    known = ", ".join(repr(method.name) for method in methods)
    raise ConfigurationError(f"--random {name!r}: not one of the methods of this run, which are {known}")


def _value(text: str) -> Any:
    """Read JSON; what is none is a word."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text.strip()
