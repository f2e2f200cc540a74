"""One grammar: the flags of all commands, their spellings, types and help; completion."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from pydantic import BaseModel

from stepspec import __version__, cli
from stepspec.evals.command_line import add_command, new_app
from stepspec.evals.flags import BUDGET, KEYS, SAMPLING, SEED, SERVERS
from stepspec.orchestrator.run_options import RunOption
from stepspec.setting_sources import models
from stepspec.settings import Settings

from .docs.reference import field_docstrings
from .test_cli import call

ROOT = Path(__file__).parents[1]
WIDTH = 80  # columns of a terminal

PROGRAMS: Mapping[str, str] = {
    "lab.bench": "main",
    "lab.calibration_simulation": "main",
    "lab.estimate_accuracy": "main",
    "lab.faults": "main",
    "lab.grading": "check",
    "lab.kills": "main",
    "lab.matrix": "main",
    "lab.overhead": "main",
    "lab.random_pair": "main",
    "lab.soak": "main",
    "tests.stand_in.__main__": "main",
}
"""The programs ``python -m NAME`` that are one command, with their functions."""
GROUPS = ("lab.simulation.__main__", "lab.training.__main__")

SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "--policy": ("--method", "--policies"),
    "--option": ("--options", "--set", "--opt"),
    "--limit": ("--count", "--number", "--max-problems", "--num-problems"),
    "--concurrency": ("--at-once", "--parallel", "--jobs"),
    "--users": ("--loads", "--concurrencies"),
    "--output": ("--out", "--out-file", "--output-file", "--to"),
    "--problems": ("--file", "--input"),
    "--data": ("--data-file", "--dataset"),
    "--json": ("--as-json", "--format"),
    "--seed": ("--random-seed",),
    "--profile": ("--pace",),
    "--config": ("--settings", "--config-file"),
    "--small-api-key": ("--small-key",),
    "--large-api-key": ("--large-key", "--api-key"),
    "--temperature": ("--temp",),
    "--top-p": ("--top_p", "--nucleus"),
    "--max-tokens": ("--budget",),
    "--max-seconds": ("--seconds", "--timeout"),
    "--trace": ("--trace-file", "--trace-to"),
    "--verbose": ("--debug",),
}
"""
The one spelling of what several commands have, and others that would mean the same.

``--tokens`` is the length of a chain or of a step, and ``--threads`` are those of the CPU.
"""


def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield every command within *command*, with its name."""
    for inner, each in getattr(command, "commands", {}).items():
        yield from walk(f"{name} {inner}", each)
    if not hasattr(command, "commands"):
        yield name, command


COMMANDS: Mapping[str, Any] = dict(walk("stepspec", typer.main.get_command(cli.app)))


def programs() -> Mapping[str, Any]:
    """The programs of the evals, by their names."""
    found: dict[str, Any] = {}
    for name, function in PROGRAMS.items():
        app = new_app(add_completion=False)
        add_command(app, getattr(importlib.import_module(name), function))
        found |= walk(name, typer.main.get_command(app))
    for name in GROUPS:
        found |= walk(name, typer.main.get_command(importlib.import_module(name).app))
    return found


def options(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if parameter.param_type_name == "option"]


def long(option: Any) -> str:
    return next(str(name) for name in option.opts if name.startswith("--"))


def kind(command: Any, option: Any) -> str:
    """The type of one value, for a flag that may be repeated too."""
    annotation = inspect.signature(command.callback).parameters[option.name].annotation
    (shown, *_) = get_args(annotation) or (annotation,)
    name = re.sub(r"^list\[(.*)\]$", r"\1", str(shown).removesuffix(" | None"))
    return name.removeprefix("<class '").removesuffix("'>")


def test_every_program_of_the_evals_is_looked_at() -> None:
    files = [*(ROOT / "evals").rglob("*.py"), *(ROOT / "lab").glob("*.py")]
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("evals.")
        for path in files
        if re.search(r"^    (script|run)\(", path.read_text(), re.M)
    }
    of_the_command = {"judge.command", "calibration.command", "estimate.command", "cli", "command_line"}
    assert names - of_the_command <= {name.removeprefix("stepspec.evals.") for name in (*PROGRAMS, *GROUPS)}


def test_all_parameters_have_help_that_ends_with_a_full_stop() -> None:
    pytest.importorskip("scipy")
    bare = [
        f"{name}: {parameter.name}"
        for name, command in {**COMMANDS, **programs()}.items()
        for parameter in command.params
        if not (parameter.help or "").endswith(".") and parameter.name != "help"
    ]
    assert bare == []


def test_every_command_says_what_it_does_and_has_examples() -> None:
    for name, command in COMMANDS.items():
        assert (command.help or "").strip().endswith("."), name
        assert name in (command.epilog or ""), name


def test_a_flag_has_one_type_and_one_short_form_in_all_commands() -> None:
    seen: dict[str, dict[tuple[Any, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, command in COMMANDS.items():
        for option in options(command):
            short = tuple(each for each in option.opts if not each.startswith("--"))
            seen[long(option)][kind(command, option), option.is_flag, short].append(name)
    assert {flag: dict(forms) for flag, forms in seen.items() if len(forms) > 1} == {}


def test_a_short_form_stands_for_one_flag_everywhere() -> None:
    pytest.importorskip("scipy")
    meanings: dict[str, set[str]] = defaultdict(set)
    for command in {**COMMANDS, **programs()}.values():
        for option in options(command):
            for short in (each for each in option.opts if not each.startswith("--")):
                meanings[short].add(long(option))
    assert {short: flags for short, flags in meanings.items() if len(flags) > 1} == {}
    assert {flag: "".join(flags) for flag, flags in meanings.items()} == {
        "-O": "--option",
        "-n": "--limit",
        "-o": "--output",
        "-p": "--policy",
        "-v": "--verbose",
    }


def test_one_thing_has_one_spelling() -> None:
    pytest.importorskip("scipy")
    everything = {**COMMANDS, **programs()}
    used = {name for command in everything.values() for option in options(command) for name in option.opts}
    assert {*SPELLINGS} <= used
    assert used & {other for others in SPELLINGS.values() for other in others} == set()


@pytest.mark.parametrize("flag", [flag.variable for flag in (*SERVERS, *SAMPLING, *SEED, *BUDGET)])
def test_the_flags_of_settings_are_those_of_every_command_that_runs_models(flag: str) -> None:
    known = {name: {each.name for each in options(command)} for name, command in COMMANDS.items()}
    solving = {"solve", "serve", "eval", "calibrate", "estimate", "config show"}
    without = {"serve"} if flag in ("max_tokens", "max_steps") else set[str]()
    if flag.startswith("critic"):
        without = {"estimate"}  # of two models
    assert {name for name in solving if flag not in known[f"stepspec {name}"]} == without


def test_every_command_that_reads_settings_takes_a_file() -> None:
    with_config = {name for name, command in COMMANDS.items() if "config" in {each.name for each in options(command)}}
    reading = {"solve", "serve", "eval", "calibrate", "estimate", "judge", "doctor", "config show"}
    assert with_config == {f"stepspec {name}" for name in reading}
    assert {each.name for each in options(COMMANDS["stepspec doctor"])} >= {key.variable for key in KEYS}


def test_every_setting_is_described_where_it_is_declared() -> None:
    def undescribed(model: type[BaseModel], seen: set[type]) -> Iterator[str]:
        seen.add(model)
        for name, field in model.model_fields.items():
            declared = field.description or any(isinstance(entry, RunOption) for entry in field.metadata)
            if not (declared or field_docstrings(model).get(name)):
                yield f"{model.__name__}.{name}"
            for inner in models(field.annotation):
                if inner not in seen:
                    yield from undescribed(inner, seen)

    assert sorted(undescribed(Settings, set())) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_no_line_of_the_examples_is_wrapped(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setattr(sys, "argv", [])
    assert call(*name.split()[1:], "--help") == 0
    _, _, printed = capfd.readouterr().out.partition("Examples:")
    shown = [line.strip() for line in printed.splitlines() if line.strip()]
    _, _, written = (COMMANDS[name].epilog or "").partition("Examples:")
    assert shown == [line.strip() for line in written.splitlines() if line.strip(" \b")]
    assert max(map(len, printed.splitlines())) <= WIDTH


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("stepspec solve --policy refl", {"reflective"}),
        ("stepspec serve -p bi", {"bild"}),
        ("stepspec eval math", {"math500"}),
        ("stepspec calibrate aime", {"aime24", "aime25"}),
        ("stepspec eval math500 --policy specul", {"speculative-thinking"}),
        ("stepspec conf", {"config"}),
        ("stepspec solve --small-", {"--small-api-key"}),
    ],
)
def test_a_shell_completes_names(words: str, offered: set[str]) -> None:
    environment = {"_STEPSPEC_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    code = "import sys; sys.argv = ['stepspec']; from stepspec.cli import main; main()"
    path = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**path, **environment}, capture_output=True, text=True, timeout=120
    )
    assert set(ran.stdout.split()) == offered, ran.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("eval gsm8k --small http://a:1 --large http://b:1 -p specreason -p bild -O scale=step", "no option 'scale'"),
        ("estimate --small http://a:1 --large http://b:1 -p bild -O scael=step", "did you mean 'scale'"),
        ("solve x --small http://a:1 --large http://b:1 -O threshold=80", "--option threshold: policy 'specreason'"),
        ("solve x --small-api-key k", "small.url"),
        ("solve x --config nowhere.toml", "--config names 'nowhere.toml', which is not a file"),
    ],
)
def test_wrong_options_and_settings_are_named_before_anything_starts(
    words: str, complaint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    assert call(*words.split()) == 2
    printed = capfd.readouterr()
    assert complaint in printed.err
    assert printed.out == ""


def test_both_forms_print_the_version(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [])
    for flag in ("-V", "--version"):
        assert call(flag) == 0
        assert capfd.readouterr().out == f"{__version__}\n"
