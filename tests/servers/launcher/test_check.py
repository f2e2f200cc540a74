"""
What a machine has for a pair; a pair that cannot run is refused before any start, with the cure.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepspec.evals.testbed.servers import MODELS
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.servers.launcher.check import GIB, Machine, check_pair, inspect_machine, model_folder
from stepspec.servers.launcher.pair import Pair

BIG = "Qwen/Qwen3-32B"
TINY = "Qwen/Qwen3-0.6B"
READY = Machine(
    cards=2,
    card=79.2,
    weights={(BIG, None): 61 * GIB, (TINY, None): 2 * GIB},
)


def pair(
    large: dict[str, Any] | None = None, small: dict[str, Any] | None = None, **more: Any
) -> Pair:
    roles = {
        "large": {"model": BIG, "gpus": [0], "memory": 0.9, **(large or {})},
        "small": {"model": TINY, "gpus": [1], "memory": 0.9, **(small or {})},
    }
    return Pair.model_validate({**roles, **more})


def complaint(wrong: Pair, machine: Machine = READY) -> str:
    with pytest.raises(ConfigurationError) as failure:
        check_pair(wrong, machine)
    return str(failure.value)


def test_a_pair_that_fits_is_let_through_also_where_nothing_is_known_of_the_machine() -> None:
    check_pair(pair(), READY)
    check_pair(pair({"memory": 1.0}), Machine())
    check_pair(
        Pair.model_validate({"large": {"url": "http://a:1"}, "small": {"url": "http://b:1"}}),
        Machine(),
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            pair(card=47),
            (
                "large does not fit: its weights take 61.0 GiB of each card, and it may use 0.9 of"
                " 47 GiB"
            ),
        ),
        (
            pair({"gpus": [0, 2]}, card=20),
            "large does not fit: its weights take 30.5 GiB of each card",
        ),
        (
            pair({"memory": 0.79, "speculation": "draft_model"}),
            "large does not fit: its weights take 63.0 GiB",
        ),
        (
            pair(small={"gpus": [0], "memory": 0.2}),
            "GPU 0: the shares of its memory exceed 1 (large.memory 0.9 + sm",
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
        (
            pair(small={"speculation": "draft_model"}),
            "small.speculation: the pair has no smaller model that could",
        ),
        (pair({"port": 8001}, {"port": 8001}), "large and small have the same port 8001"),
        (pair(small={"memory": 0.01}), "raise small.memory"),
    ],
)
def test_what_cannot_run_is_refused_with_the_cure(wrong: Pair, message: str) -> None:
    assert message in complaint(wrong)


def test_what_the_machine_lacks_is_named() -> None:
    taken = Machine(taken={("127.0.0.1", 8001): "Address already in use"})
    for wrong, role in (
        (pair({"port": 8001}), "large"),
        (pair(small={"port": 8001}), "small"),
    ):
        assert f"{role}: 127.0.0.1:8001 is not available (Address already in use)" in complaint(
            wrong, taken
        )


def test_all_errors_are_reported_at_once() -> None:
    message = complaint(pair({"port": 1, "memory": 0.2}, {"port": 1, "model": "/nowhere"}))
    assert message.count("\n- ") == 3


def local(**large: Any) -> Pair:
    small: dict[str, object] = {"model": str(MODELS / "small"), "gpus": []}
    return Pair.model_validate(
        {"large": {"model": str(MODELS / "large"), "gpus": [], **large}, "small": small}
    )


def test_the_weights_of_local_models_and_drafters_are_known() -> None:
    drafter = {"method": "draft_model", "model": str(MODELS / "small"), "more": {"revision": "v2"}}
    known = inspect_machine(local(speculation=drafter))
    sizes = {
        name: (MODELS / name / "model.safetensors").stat().st_size for name in ("large", "small")
    }
    assert known.weights == {
        (str(MODELS / "large"), None): sizes["large"],
        (str(MODELS / "small"), None): sizes["small"],
        (str(MODELS / "small"), "v2"): sizes["small"],
    }
    assert inspect_machine(local(model="/nowhere")).weights.keys() == {
        (str(MODELS / "small"), None)
    }


def test_models_in_the_hubs_cache_are_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "a.safetensors").write_bytes(b"12345")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    assert model_folder("org/name") == model_folder("org/name", "abc") == snapshot
    assert model_folder("org/name", "v2") is None
    assert model_folder("org/other") is None
    assert inspect_machine(local(model="org/name")).weights["org/name", None] == 5


def test_an_occupied_port_is_detected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert inspect_machine(local(port=port)).taken == {
            ("127.0.0.1", port): "Address already in use"
        }
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
        ("2048\\n1024\\n", None, 2, 2.0),
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
