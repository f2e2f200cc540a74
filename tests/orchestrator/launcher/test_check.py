"""A pair that cannot run is refused before any start, with the cure, or in vLLM's own words."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.installation import install_command
from stepspec.orchestrator.launcher import check, up
from stepspec.orchestrator.launcher.check import GIB, check_flags, check_pair, refusals
from stepspec.orchestrator.launcher.machine import Machine
from stepspec.orchestrator.launcher.pair import Pair

LARGE, SMALL = "Qwen/Qwen3-32B", "Qwen/Qwen3-1.7B"
READY = Machine(cards=(79.2, 79.2), weights={(LARGE, None): 61 * GIB, (SMALL, None): 4 * GIB})
FILE = '[large]\nmodel = "org/big"\ngpus = []\nflags = { max-num-seq = 3 }\n[small]\nurl = "http://a:1"\n'
ANSWER = """
import json, sys
lines = json.load(sys.stdin)
print("vLLM's own log")
print(json.dumps({name: "unrecognized arguments" if "--max-num-seq" in line else "" for name, line in lines.items()}))
"""


def pair(large: dict[str, Any] | None = None, small: dict[str, Any] | None = None, **more: Any) -> Pair:
    roles = {
        "large": {"model": LARGE, "gpus": [0], "memory": 0.9, **(large or {})},
        "small": {"model": SMALL, "gpus": [1], "memory": 0.9, **(small or {})},
    }
    return Pair.model_validate({**roles, **more})


def complaint(wrong: Pair, machine: Machine = READY, *methods: str) -> str:
    with pytest.raises(ConfigurationError) as failure:
        check_pair(wrong, machine, methods)
    return str(failure.value)


def test_a_pair_that_fits_is_let_through_also_where_nothing_is_known_of_the_machine() -> None:
    check_pair(pair(), READY)
    check_pair(pair({"memory": 1.0}), Machine())
    check_pair(Pair.model_validate({"large": {"url": "http://a:1"}, "small": {"url": "http://b:1"}}), Machine(False))


def test_without_vllm_nothing_can_be_started() -> None:
    assert f"vLLM is not installed: {install_command('vllm')}; without a GPU" in complaint(pair(), Machine(False))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (pair(card=47), "large does not fit: its weights take 61.0 GiB of each card, and it may use 0.9 of 47 GiB"),
        (pair({"gpus": [0, 2]}, card=20), "large does not fit: its weights take 30.5 GiB of each card"),
        (pair({"memory": 0.8, "speculation": "draft_model"}), "large does not fit: its weights take 65.0 GiB"),
        (pair(small={"gpus": [0], "memory": 0.2}), "GPU 0: the shares of its memory exceed 1 (large.memory 0.9 + sm"),
        (pair(small={"gpus": [4]}), "small: there is no GPU 4; the driver knows 2, from 0 on"),
        (pair(small={"model": "/nowhere"}), "small.model: no model at /nowhere: a folder with a config.json is needed"),
        (pair(small={"speculation": "draft_model"}), "small.speculation: the pair has no smaller model that could"),
        (
            pair({"speculation": {"method": "draft_model", "model": LARGE}}),
            "large.speculation: the model cannot draft for itself",
        ),
        (pair({"port": 8001}, {"port": 8001}), "large and small have the same port 8001"),
        (pair({"name": "m"}, {"name": "m"}), "large and small have the same served name 'm'"),
        (pair({"name": "auto"}), "large.name: 'auto' is a reserved name"),
        (pair({"name": "bild"}), "large.name: 'bild' is the name of a method"),
    ],
)
def test_what_cannot_run_is_refused_with_the_cure(wrong: Pair, message: str) -> None:
    assert message in complaint(wrong, READY, "bild")


@pytest.mark.parametrize(("visible", "allowed"), [(("5",), "5"), ((), "none")])
def test_the_environment_decides_which_cards_there_are(visible: tuple[str, ...], allowed: str) -> None:
    message = complaint(pair(), Machine(cards=(79.2,) * 8, visible=visible))
    assert f"there is no GPU 1; CUDA_VISIBLE_DEVICES allows {allowed}, which gpus number from 0" in message


def test_an_address_in_use_is_named() -> None:
    taken = Machine(taken={("127.0.0.1", 8001): "Address already in use"})
    assert "large.port: 127.0.0.1:8001 is not available (Address already in use)" in complaint(
        pair({"port": 8001}), taken
    )


def test_all_errors_are_reported_at_once() -> None:
    message = complaint(pair({"port": 1, "memory": 0.2}, {"port": 1, "model": "/nowhere"}))
    assert message.count("\n- ") == 3


def scripted(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Let *source* stand in for vLLM's parser."""
    monkeypatch.setattr(check, "WORKER", (sys.executable, "-c", source))


def test_a_refusal_of_vllm_is_reported_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, ANSWER)
    with pytest.raises(ConfigurationError) as failure:
        check_flags(pair({"flags": {"max-num-seq": 3}}, {"flags": {"seed": 3}}))
    assert str(failure.value) == "large: the installed vLLM refuses its flags: unrecognized arguments"
    assert check_flags(pair({"flags": {"seed": 3}})) == ""


def test_all_arguments_of_the_servers_with_flags_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = dict[str, Any]()

    def parse(given: dict[str, Any]) -> dict[str, str]:
        lines.update(given)
        return dict.fromkeys(given, "")

    monkeypatch.setattr(check, "refusals", parse)
    assert check_flags(pair(small={"flags": {"seed": 3}, "context": 1024})) == ""
    assert lines.keys() == {"small"}
    assert {SMALL, "--seed", "--max-model-len"} <= {*lines["small"]}


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise ImportError('cli_args')", "ImportError: cli_args"),
        ("raise SystemExit(3)", "exit code 3"),
        ("print('no JSON')", "Expecting value"),
        ("print('{}')", "large"),
        ("import time; time.sleep(60)", "it was not done after 0.5 s"),
    ],
)
def test_an_unavailable_parser_has_a_reason(source: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, source)
    monkeypatch.setattr(check, "WORKER_SECONDS", 0.5 if "sleep" in source else 60.0)
    found = refusals({"large": ["big"]})
    assert isinstance(found, str)
    assert why in found


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pair's file with a wrong flag, on a machine that has vLLM."""
    monkeypatch.setattr(up, "inspect_machine", lambda pair: Machine())  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    (tmp_path / "pair.toml").write_text(FILE)
    return tmp_path / "pair.toml"


def test_a_wrong_flag_is_refused_before_anything_is_started(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, ANSWER)
    with pytest.raises(ConfigurationError, match="large: the installed vLLM refuses its flags"):
        up.load_checked(file, Console(quiet=True))


def test_unchecked_flags_are_reported(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(monkeypatch, "raise ImportError('cli_args')")
    up.load_checked(file, Console(width=200))
    assert "not checked: the flags: vLLM's parser could not be run (ImportError: cli_args)" in capsys.readouterr().out


@pytest.mark.parametrize(("was", "now"), [("flags = { max-num-seq = 3 }", ""), ("org/big", "./gone")])
def test_the_parser_is_run_only_for_flags_of_a_file_without_other_errors(
    was: str, now: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, f"open({str(file.parent / 'ran')!r}, 'w')")
    file.write_text(FILE.replace(was, now))
    if now:
        with pytest.raises(ConfigurationError, match=r"large\.model: no model at"):
            up.load_checked(file, Console(quiet=True))
    else:
        up.load_checked(file, Console(quiet=True))
    assert not os.path.exists(file.parent / "ran")
