"""The files of ``docker/``, read as those programs read them that they are for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, cast

import yaml

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
CHART = DOCKER / "helm/stepspec"
COMPOSED = ("compose.yaml", "compose.cpu.yaml")
# what has no default
ENVIRONMENT = {"STEPSPEC_SERVICE__KEYS": "one,two", "GRAFANA_PASSWORD": "secret"}

Tree: TypeAlias = dict[str, Any]
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def tool(name: str) -> str:
    """Return the path of a program in the folder of this Python."""
    return str(Path(sys.executable).with_name(name))


def program(name: str) -> ModuleType:
    """Import a program of .ci."""
    spec = spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def run(*command: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, **more)


def read(path: Path) -> Tree:
    return cast("Tree", yaml.safe_load(path.read_text()))


def composed(name: str, environment: Mapping[str, str] = ENVIRONMENT) -> Tree:
    """Return a compose file with its variables filled in and what it extends merged in."""
    tree = _filled(name, environment)
    for service, own in tree["services"].items():
        base = own.pop("extends", None)
        if base:
            tree["services"][service] = {
                **_filled(base["file"], environment)["services"][base["service"]],
                **own,
            }
    return tree


def variables(path: Path) -> set[str]:
    """Return the variables that a compose file asks the environment for."""
    return {found[1] for found in VARIABLE.finditer(path.read_text())}


def _filled(name: str, environment: Mapping[str, str]) -> Tree:
    text = VARIABLE.sub(lambda found: _value(found, environment), (DOCKER / name).read_text())
    return cast("Tree", yaml.safe_load(text))


def _value(found: re.Match[str], environment: Mapping[str, str]) -> str:
    name, kind, rest = found.groups()
    if environment.get(name):
        return environment[name]
    if kind == "?":
        raise KeyError(f"{name}: {rest}")
    return rest or ""


def block(document: Path, language: str) -> str:
    """
    Return all blocks of a document that are in a *language*, as one file; there has to be one.
    """
    blocks = re.findall(
        rf"^```{language}\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE
    )
    assert blocks
    return "\n".join(blocks)


def outside() -> dict[str, str]:
    """Return this process's environment without the settings that a developer might have in it."""
    return {key: value for key, value in os.environ.items() if not key.startswith("STEPSPEC_")}
