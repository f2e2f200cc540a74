"""A pair that cannot run on this machine is refused before any start, with the cure."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepspec.orchestrator.errors import ConfigurationError
from stepspec.servers.launcher import check
from stepspec.servers.launcher.check import check_pair, count_cards
from stepspec.servers.launcher.pair import Pair

CARDS = 2


@pytest.fixture(autouse=True)
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine have two cards."""
    monkeypatch.setattr(check, "count_cards", lambda: CARDS)


def pair(
    large: dict[str, Any] | None = None, small: dict[str, Any] | None = None, **more: Any
) -> Pair:
    roles = {
        "large": {"model": "Qwen/Qwen3-32B", "gpus": [0], "memory": 0.9, **(large or {})},
        "small": {"model": "Qwen/Qwen3-0.6B", "gpus": [1], "memory": 0.9, **(small or {})},
    }
    return Pair.model_validate({**roles, **more})


def complaint(wrong: Pair) -> str:
    with pytest.raises(ConfigurationError) as failure:
        check_pair(wrong)
    return str(failure.value)


def test_a_pair_that_can_run_is_let_through_also_where_nothing_is_known_of_the_cards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_pair(pair())
    monkeypatch.setattr(check, "count_cards", lambda: None)
    check_pair(pair({"memory": 1.0, "gpus": [7]}))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            pair(small={"gpus": [0], "memory": 0.2}),
            "large.memory and small.memory exceed 1 together: lower one, or use another GPU",
        ),
        (
            pair(small={"gpus": [4]}),
            (
                "small: there is no GPU 4: 2 may be used (nvidia-smi, CUDA_VISIBLE_DEVICES), which"
                " gpus number from 0"
            ),
        ),
        (
            pair(small={"model": "/nowhere"}),
            "small.model: no model at /nowhere: a folder with a config.json is needed",
        ),
        (pair({"port": 8001}, {"port": 8001}), "large and small have the same port 8001"),
    ],
)
def test_what_cannot_run_is_refused_with_the_cure(wrong: Pair, message: str) -> None:
    assert message in complaint(wrong)


def test_all_errors_are_reported_at_once() -> None:
    message = complaint(pair({"port": 1, "gpus": [5]}, {"port": 1, "model": "/nowhere"}))
    assert len(message.splitlines()) >= 3


@pytest.mark.parametrize("role", ["large", "small"])
def test_an_occupied_port_is_detected(role: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        wrong = Pair.model_validate(
            {**pair().model_dump(), role: {"model": "any", "gpus": [], "port": port}}
        )
        message = f"{role}: 127.0.0.1:{port} is not available (Address already in use): stop"
        assert message in complaint(wrong)
    check_pair(wrong)


@pytest.mark.parametrize("gpus", [[0], []])
def test_a_cpu_needs_no_driver(gpus: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def count() -> int:
        asked.append("the driver")
        return CARDS

    monkeypatch.setattr(check, "count_cards", count)
    check_pair(pair({"gpus": gpus}, {"gpus": []}))
    assert bool(asked) == bool(gpus)


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
    ("output", "visible", "cards"),
    [
        ("0\\n1\\n", None, 2),
        ("0\\n1\\n", "GPU-3c-9f, 0,1", 3),
        ("0\\n", "", 0),
        ("[N/A]\\n", None, None),
        ("[N/A]\\n", "4", 1),
        ("\\n", None, None),
    ],
)
def test_the_driver_and_the_environment_determine_the_cards(
    output: str,
    visible: str | None,
    cards: int | None,
    driver: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver(output)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert count_cards() == cards
