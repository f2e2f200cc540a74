"""What a machine has for a pair: weights, cards and ports."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepspec.evals.testbed.servers import MODELS
from stepspec.orchestrator.launcher import machine
from stepspec.orchestrator.launcher.machine import inspect_machine, model_folder
from stepspec.orchestrator.launcher.pair import Pair


def pair(**large: Any) -> Pair:
    small: dict[str, object] = {"model": str(MODELS / "small"), "gpus": []}
    return Pair.model_validate({"large": {"model": str(MODELS / "large"), "gpus": [], **large}, "small": small})


def test_the_weights_of_local_models_and_drafters_are_known() -> None:
    drafter = {"method": "draft_model", "model": str(MODELS / "small"), "revision": "v2"}
    known = inspect_machine(pair(speculation=drafter))
    sizes = {name: (MODELS / name / "model.safetensors").stat().st_size for name in ("large", "small")}
    assert known.weights == {
        (str(MODELS / "large"), None): sizes["large"],
        (str(MODELS / "small"), None): sizes["small"],
        (str(MODELS / "small"), "v2"): sizes["small"],
    }
    assert inspect_machine(pair(model="/nowhere")).weights.keys() == {(str(MODELS / "small"), None)}


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
    assert inspect_machine(pair(model="org/name")).weights["org/name", None] == 5


def test_an_occupied_port_is_detected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert inspect_machine(pair(port=port)).taken == {("127.0.0.1", port): "Address already in use"}
    assert inspect_machine(pair(port=port)).taken == {}


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
    ("output", "cards"),
    [("1024\\n2048\\n", (1.0, 2.0)), ("[N/A]\\n", None), ("No devices were found\\n", None), ("\\n", ())],
)
def test_the_driver_is_queried_if_a_card_is_needed(
    output: str, cards: tuple[float, ...] | None, driver: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(output)
    assert inspect_machine(pair(gpus=[0])).cards == cards
    assert inspect_machine(pair()).cards is None
    monkeypatch.setattr(machine, "NVIDIA_SMI", ("/nowhere/nvidia-smi",))
    assert inspect_machine(pair(gpus=[0])).cards is None


@pytest.mark.parametrize(
    ("value", "visible"),
    [
        (None, None),
        ("2,1", ("2", "1")),
        ("GPU-3c-9f, 0", ("GPU-3c-9f", "0")),
        ("MIG-41b3,1", ("MIG-41b3", "1")),
        ("1,-1,2", ("1",)),
        ("NoDevFiles", ()),
        ("", ()),
    ],
)
def test_the_environment_determines_the_cards_and_their_order(
    value: str | None, visible: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if value is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert inspect_machine(pair()).visible == visible
