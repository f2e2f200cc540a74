"""Arms as a command line names them: ``specreason``, ``bild:scale=step,ahead=0``, or a policy file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import orjson
from pydantic import TypeAdapter, ValidationError

from .. import policies
from ..orchestrator.errors import ConfigurationError
from ..orchestrator.interfaces import answered_by, ended_by
from .arms import LARGE, SMALL
from .trial import Arm

CONTROL = "random"
FILE = ".toml"
SOLVERS = (  # what a solver is told besides its policy
    "ahead", "hedge", "lead", "plan", "ending", "answer", "early_exit", "give_up", "sure_bets", "adapt", "delimiter",
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
    if spec.endswith(FILE):
        return _from_file(Path(spec))
    policy, _, rest = spec.partition(":")
    pairs = [part.partition("=") for part in rest.split(",")] if rest else []
    if not all(equals for _, equals, _ in pairs):
        raise ConfigurationError(f"{spec!r}: write options as NAME=VALUE after the colon, with commas between them")
    return _arm(spec, policy, {name.strip(): _value(value) for name, _, value in pairs})


def calibrated(chosen: Sequence[str]) -> dict[str, str]:
    """What the *chosen* arms that are policy files were calibrated on, by the arm's name."""
    files = [Path(spec) for spec in chosen if spec.endswith(FILE)]
    tables: dict[str, Any] = {path.stem: _settings(path).get("calibration") for path in files}
    told = {name: cast("dict[str, Any]", table) for name, table in tables.items() if isinstance(table, dict)}
    return {name: str(table["benchmark"]) for name, table in told.items() if "benchmark" in table}


def _settings(path: Path) -> dict[str, Any]:
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:  # no TOML, or not even text
        raise ConfigurationError(f"no policy file at {path}: {exc}") from exc
    if "policy" not in settings:
        raise ConfigurationError(f'{path} names no policy; write one as in policy = "specreason"')
    return settings


def _from_file(path: Path) -> Arm:
    """Take from a settings file what makes an arm, and leave the rest, such as URLs."""
    settings = _settings(path)
    options = {name: settings[name] for name in SOLVERS if name in settings}
    return _arm(path.stem, settings["policy"], {**settings.get("options", {}), **options})


def _arm(name: str, policy: str, options: Mapping[str, Any]) -> Arm:
    own = {key: value for key, value in options.items() if key not in SOLVERS}
    solvers = {key: value for key, value in options.items() if key in SOLVERS}
    try:
        found = _ADAPTER.validate_python({"name": name, "policy": policy, "options": own, **solvers})
    except ValidationError as exc:
        wrong = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in exc.errors())
        raise ConfigurationError(f"{name!r}: {wrong}") from exc
    try:
        policies.check(policy, own)
    except ConfigurationError as exc:
        unknown = set(own) - set(policies.options(policy))
        raise ConfigurationError(f"{exc}; of any arm: {', '.join(SOLVERS)}" if unknown else str(exc)) from exc
    return found


def control(name: str, methods: Sequence[Arm]) -> Arm:
    """Random acceptance as often as the arm *name* accepts; all else is as in that arm."""
    for method in methods:
        if method.name == name:
            built = policies.METHODS[method.policy].build
            return replace(
                method,
                name=f"{CONTROL} like {name}",
                policy=CONTROL,
                options={},
                ending=method.ending or ended_by(built),
                answer=method.answer or answered_by(built),
                like=name,
            )
    known = ", ".join(repr(method.name) for method in methods)
    raise ConfigurationError(f"--random {name!r}: not one of the methods of this run, which are {known}")


def _value(text: str) -> Any:
    """Read JSON; what is none is a word."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text.strip()
