"""The checks before a start: the installed vLLM, the files of the models, the ports, the cards."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.worlds import SHORT, find_world
from stepspec.evals.testbed.servers import MODELS
from stepspec.orchestrator.launcher import machine
from stepspec.orchestrator.launcher.machine import (
    Card,
    MachineFacts,
    inspect_machine,
    installed_vllm,
    speculation_methods,
)
from stepspec.orchestrator.launcher.pair import Pair

SOURCE = """
Cards = Literal["on_card"]
Heads = Literal["eagle3", Blocks]
Blocks = Literal["dflash"]
SpeculativeMethod = Literal["ngram", Heads, Cards, Missing]
"""


def pair(**large: object) -> Pair:
    small: dict[str, object] = {"model": str(MODELS / "small"), "gpus": []}
    return Pair.model_validate({"large": {"model": str(MODELS / "large"), "gpus": [], **large}, "small": small})


def test_the_methods_are_read_from_the_source_with_the_types_it_is_made_of() -> None:
    assert speculation_methods(SOURCE) == frozenset({"ngram", "eagle3", "dflash", "on_card"})
    assert speculation_methods("Other = Literal['x']") is None


def test_the_installed_vllm_has_the_methods_that_are_offered_and_is_not_imported() -> None:
    found = installed_vllm()
    if found is None:
        pytest.skip("vLLM is not installed here")
    assert found.methods is not None
    assert {"ngram", "suffix", "draft_model", "eagle3", "mtp", "medusa", "dflash"} <= found.methods
    assert found.version
    code = f"import sys; from {machine.__name__} import installed_vllm; installed_vllm(); print('vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_local_models_are_read_with_their_drafter() -> None:
    known = inspect_machine(pair(speculation="draft_model"))
    large, small = (known.of(str(MODELS / name), None) for name in ("large", "small"))
    assert large.config is not None
    assert small.vocabulary is not None
    assert large.vocabulary == small.vocabulary
    assert large.config["hidden_size"] == 128
    other = inspect_machine(
        pair(speculation={"method": "draft_model", "model": str(find_world(SHORT).model("small-other"))})
    )
    assert other.of(str(find_world(SHORT).model("small-other")), None).vocabulary != large.vocabulary
    assert other.cards is None


def test_a_folder_that_is_none_is_missing_and_a_hub_name_only_unknown() -> None:
    known = inspect_machine(pair(model="/nowhere/at/all"))
    assert known.of("/nowhere/at/all", None).missing == "/nowhere/at/all"
    assert inspect_machine(pair(model="org/name")).of("org/name", None) == machine.ModelFiles()


def test_models_in_the_hubs_cache_are_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    kept = tmp_path / "models--org--name"
    snapshot = kept / "snapshots" / "abc123"
    snapshot.mkdir(parents=True)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("abc123")
    assert machine.model_folder("org/name") is None
    (snapshot / "config.json").write_text(json.dumps({"hidden_size": 8}))
    assert machine.model_folder("org/name") == machine.model_folder("org/name", "abc123") == snapshot
    assert machine.model_folder("org/name", "other") is None
    assert machine.read_config(snapshot) == {"hidden_size": 8}
    assert machine.read_vocabulary(snapshot) is None
    (snapshot / "config.json").write_text("[]")
    assert machine.read_config(snapshot) is None


def test_an_occupied_port_is_detected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert inspect_machine(pair(port=port)).taken == {("127.0.0.1", port): "Address already in use"}
    assert inspect_machine(pair(port=port)).taken == {}


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let a script that prints so much stand in for nvidia-smi, on a machine that allots nothing."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def tells(output: str) -> None:
        script = tmp_path / "nvidia-smi"
        script.write_text(f"#!/bin/sh\nprintf '{output}'\n")
        script.chmod(0o755)
        monkeypatch.setattr(machine, "NVIDIA_SMI", (str(script), *machine.NVIDIA_SMI[1:]))

    return tells


FOUR = "".join(f"{number}, GPU-{number}c-9f, {1024 * (number + 1)}, NVIDIA X{number}\\n" for number in range(4))


def sizes(known: MachineFacts) -> tuple[float | None, ...] | None:
    return None if known.cards is None else tuple(card.gib for card in known.cards)


@pytest.mark.parametrize(
    ("output", "cards"),
    [
        (FOUR, (1.0, 2.0, 3.0, 4.0)),
        ("0, GPU-0, [N/A], NVIDIA GB10\\n1, GPU-1, 81559, NVIDIA H100 80GB HBM3\\n", (None, 81559 / 1024)),
        ("No devices were found\\n", None),
    ],
)
def test_the_driver_is_queried_if_a_card_is_needed(
    output: str, cards: tuple[float | None, ...] | None, driver: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(output)
    known = inspect_machine(pair(gpus=[0]))
    assert (sizes(known), known.visible) == (cards, None)
    assert inspect_machine(pair()).cards is None
    monkeypatch.setattr(machine, "NVIDIA_SMI", ("/nowhere/nvidia-smi",))
    assert inspect_machine(pair(gpus=[0])).cards is None


@pytest.mark.parametrize(
    ("value", "allotted", "cards"),
    [
        ("2,1", ("2", "1"), (3.0, 2.0)),
        ("GPU-3c-9f, 0", ("GPU-3c-9f", "0"), (4.0, 1.0)),
        ("GPU-3", ("GPU-3",), (4.0,)),
        ("MIG-41b3,1", ("MIG-41b3", "1"), (None, 2.0)),
        ("1,-1,2", ("1",), (2.0,)),
        ("1,7,2", ("1", "7", "2"), (2.0,)),
        ("NoDevFiles", (), ()),
        ("", (), ()),
    ],
)
def test_the_environment_determines_the_cards_and_their_order(
    value: str,
    allotted: tuple[str, ...],
    cards: tuple[float | None, ...],
    driver: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver(FOUR)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    known = inspect_machine(pair(gpus=[0]))
    assert (known.visible, sizes(known)) == (allotted, cards)
    monkeypatch.setattr(machine, "NVIDIA_SMI", ("/nowhere/nvidia-smi",))
    assert inspect_machine(pair(gpus=[0])).cards == (Card(),) * len(allotted)


def test_the_driver_is_found_on_the_path_and_reports_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\necho '0, GPU-0, 81559, NVIDIA H100 80GB HBM3'\necho '1, GPU-1, 23034, NVIDIA L4'\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert inspect_machine(pair(gpus=[0])).cards == (
        Card(81559 / 1024, "NVIDIA H100 80GB HBM3"),
        Card(23034 / 1024, "NVIDIA L4"),
    )
