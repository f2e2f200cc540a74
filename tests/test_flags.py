"""One grammar: the flags of all commands, their types, help and examples; completion."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import pytest
import typer

from stepspec import cli
from stepspec.cli.flags import BUDGET, KEYS, SAMPLING, SEED, SERVERS

from .test_cli import call

WIDTH = 80  # columns of a terminal


def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield every command within *command*, with its name."""
    for inner, each in getattr(command, "commands", {}).items():
        yield from walk(f"{name} {inner}", each)
    if not hasattr(command, "commands"):
        yield name, command


pytestmark = pytest.mark.usefixtures("nowhere")
COMMANDS: Mapping[str, Any] = dict(walk("stepspec", typer.main.get_command(cli.app)))


def options(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if parameter.param_type_name == "option"]


def flags_of(command: Any) -> dict[str, str]:
    """The names of the flags of *command* that set settings, by the place of the setting."""
    return {".".join(flag.place): name for name, flag in command.callback.flags.items()}


def long(option: Any) -> str:
    return next(str(name) for name in option.opts if name.startswith("--"))


def kind(command: Any, option: Any) -> str:
    """The type of one value, for a flag that may be repeated too."""
    annotation = inspect.signature(command.callback).parameters[option.name].annotation
    shown, *_ = get_args(annotation) or (annotation,)
    name = re.sub(r"^list\[(.*)\]$", r"\1", str(shown).removesuffix(" | None"))
    return name.removeprefix("<class '").removesuffix("'>")


def test_every_parameter_has_help_that_ends_with_a_full_stop() -> None:
    bare = [
        f"{name}: {parameter.name}"
        for name, command in COMMANDS.items()
        for parameter in command.params
        if not (parameter.help or "").endswith(".") and parameter.name != "help"
    ]
    assert bare == []


def test_every_command_says_what_it_does_and_has_examples_of_existing_commands() -> None:
    known = {
        name: {flag for each in command.params for flag in each.opts}
        for name, command in COMMANDS.items()
    }
    names = "|".join(sorted(known, reverse=True))
    for name, command in COMMANDS.items():
        assert (command.help or "").strip().endswith("."), name
        examples = re.findall(rf"({names})\b([^\n|&]*)", (command.epilog or "").replace("\\\n", ""))
        assert name in dict(examples)
        for used, line in examples:
            assert (
                set(re.findall(r"(?<=\s)--?[a-z][\w-]*", line.partition(" # ")[0])) <= known[used]
            ), name


def test_a_flag_has_one_type_and_one_short_form_in_all_commands() -> None:
    seen: dict[str, dict[tuple[Any, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, command in COMMANDS.items():
        for option in options(command):
            short = tuple(each for each in option.opts if not each.startswith("--"))
            seen[long(option)][kind(command, option), option.is_flag, short].append(name)
    assert {flag: dict(forms) for flag, forms in seen.items() if len(forms) > 1} == {}


def test_a_short_form_stands_for_one_flag_everywhere() -> None:
    found = {
        (short, long(one))
        for each in COMMANDS.values()
        for one in options(each)
        for short in one.opts
    }
    assert sorted(pair for pair in found if not pair[0].startswith("--")) == [
        ("-O", "--option"),
        ("-n", "--limit"),
        ("-o", "--output"),
        ("-p", "--policy"),
        ("-v", "--verbose"),
    ]


def test_the_flags_of_settings_are_those_of_every_command_that_runs_models() -> None:
    names = flags_of(COMMANDS["stepspec solve"])
    wanted = {names[place] for place in (*SERVERS, *SAMPLING, *SEED, *BUDGET)}
    lacking = {
        name: wanted - {each.name for each in options(COMMANDS[f"stepspec {name}"])}
        for name in ("solve", "serve", "eval", "calibrate", "tune", "config show")
    }
    without = {"serve": {"max_tokens", "max_steps"}, "tune": {"seed"}}
    assert lacking == {name: without.get(name, set()) for name in lacking}


def test_every_command_that_reads_settings_takes_a_file() -> None:
    with_config = {
        name
        for name, command in COMMANDS.items()
        if "config" in {each.name for each in options(command)}
    }
    reading = {"solve", "serve", "eval", "calibrate", "tune", "doctor", "config show"}
    assert with_config == {f"stepspec {name}" for name in reading}
    assert flags_of(COMMANDS["stepspec doctor"]).keys() >= {*KEYS}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_line_of_the_examples_is_wrapped(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
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
def test_a_shell_completes_names(
    words: str,
    offered: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("_STEPSPEC_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    assert call() == 0
    assert set(capfd.readouterr().out.split()) == offered
