"""What a machine has for a pair; a pair that cannot run is refused before any start, with the cure."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stepspec.evals.testbed.servers import MODELS
from stepspec.orchestrator.errors import ConfigurationError, install_command
from stepspec.orchestrator.launcher import check, up
from stepspec.orchestrator.launcher.check import (
    GIB,
    Machine,
    check_flags,
    check_pair,
    inspect_machine,
    model_folder,
    refusals,
)
from stepspec.orchestrator.launcher.pair import Pair

LARGE, SMALL = "Qwen/Qwen3-32B", "Qwen/Qwen3-1.7B"
READY = Machine(cards=2, card=79.2, weights={(LARGE, None): 61 * GIB, (SMALL, None): 4 * GIB})
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


def complaint(wrong: Pair, machine: Machine = READY) -> str:
    with pytest.raises(ConfigurationError) as failure:
        check_pair(wrong, machine)
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
        (
            pair(small={"gpus": [4]}),
            "small: there is no GPU 4: 2 may be used (nvidia-smi, CUDA_VISIBLE_DEVICES), which gpus number from 0",
        ),
        (pair(small={"model": "/nowhere"}), "small.model: no model at /nowhere: a folder with a config.json is needed"),
        (pair(small={"speculation": "draft_model"}), "small.speculation: the pair has no smaller model that could"),
        (pair({"port": 8001}, {"port": 8001}), "large and small have the same port 8001"),
    ],
)
def test_what_cannot_run_is_refused_with_the_cure(wrong: Pair, message: str) -> None:
    assert message in complaint(wrong)


def test_an_address_in_use_is_named() -> None:
    taken = Machine(taken={("127.0.0.1", 8001): "Address already in use"})
    assert "large.port: 127.0.0.1:8001 is not available (Address already in use)" in complaint(
        pair({"port": 8001}), taken
    )


def test_all_errors_are_reported_at_once() -> None:
    message = complaint(pair({"port": 1, "memory": 0.2}, {"port": 1, "model": "/nowhere"}))
    assert message.count("\n- ") == 3


def local(**large: Any) -> Pair:
    small: dict[str, object] = {"model": str(MODELS / "small"), "gpus": []}
    return Pair.model_validate({"large": {"model": str(MODELS / "large"), "gpus": [], **large}, "small": small})


def test_the_weights_of_local_models_and_drafters_are_known() -> None:
    drafter = {"method": "draft_model", "model": str(MODELS / "small"), "more": {"revision": "v2"}}
    known = inspect_machine(local(speculation=drafter))
    sizes = {name: (MODELS / name / "model.safetensors").stat().st_size for name in ("large", "small")}
    assert known.weights == {
        (str(MODELS / "large"), None): sizes["large"],
        (str(MODELS / "small"), None): sizes["small"],
        (str(MODELS / "small"), "v2"): sizes["small"],
    }
    assert inspect_machine(local(model="/nowhere")).weights.keys() == {(str(MODELS / "small"), None)}


def test_models_in_the_hubs_cache_are_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    repository = tmp_path / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "a.safetensors").write_bytes(b"12345")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc\n")
    assert model_folder("org/name") == model_folder("org/name", "abc") == snapshot
    assert model_folder("org/name", "v2") is None
    assert model_folder("org/other") is None
    assert inspect_machine(local(model="org/name")).weights["org/name", None] == 5


def test_an_occupied_port_is_detected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert inspect_machine(local(port=port)).taken == {("127.0.0.1", port): "Address already in use"}
    assert inspect_machine(local(port=port)).taken == {}


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let a script that prints so much stand in for nvidia-smi, which is looked up on the path."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def tells(output: str) -> None:
        script = tmp_path / "nvidia-smi"
        script.write_text(f"#!/bin/sh\nprintf '{output}'\n")
        script.chmod(0o755)

    return tells


@pytest.mark.parametrize(
    ("output", "visible", "cards", "card"),
    [
        ("2048\\n1024\\n", None, 2, 1.0),
        ("2048\\n1024\\n", "GPU-3c-9f, 0,1", 3, 1.0),
        ("2048\\n", "", 0, 2.0),
        ("[N/A]\\n", None, None, None),
        ("[N/A]\\n", "4", 1, None),
        ("\\n", None, None, None),
    ],
)
def test_the_driver_and_the_environment_determine_the_cards(
    output: str,
    visible: str | None,
    cards: int | None,
    card: float | None,
    driver: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver(output)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = inspect_machine(local(gpus=[0]))
    assert (found.cards, found.card) == (cards, card)
    assert inspect_machine(local()).card is None  # A CPU needs no driver.


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
