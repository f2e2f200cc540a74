"""The recipes parse, fit onto their cards by the sizes in the model cards, and give the stated commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.bench import NESTED, THREE
from lab.worlds import SHORT, find_world
from stepspec import cli, policies
from stepspec.evals.testbed.servers import MODELS, miniature_servers
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.launcher.check import GIB, Machine, check_pair, inspect_machine
from stepspec.orchestrator.launcher.commands import servers, solver_settings, waves
from stepspec.orchestrator.launcher.launch import RunningServer, Server
from stepspec.orchestrator.launcher.pair import StartedServer, load

from .fakes import ScriptedModel, counting

RECIPES = Path(__file__).parent.parent / "recipes"
ALL = sorted(RECIPES.glob("*.toml"))
SIZES = {
    "Qwen/Qwen3-32B": 61,
    "Qwen/Qwen3-8B": 15.3,
    "Qwen/Qwen3-8B-AWQ": 5.7,
    "Qwen/Qwen3-1.7B": 3.8,
    "Qwen/Qwen3-0.6B": 1.4,
    "Qwen/QwQ-32B": 61,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": 61,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 3.4,
}
"""The GiB of the weights on the hub."""

KNOWN = Machine(weights={(name, None): int(size * GIB) for name, size in SIZES.items()})
EAGLE = {"method": "eagle3", "num_speculative_tokens": 3, "model": "RedHatAI/Qwen3-32B-speculator.eagle3"}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
COMMANDS: dict[str, Any] = {
    "qwen3-32b": (
        ("Qwen/Qwen3-32B", "0,1", "0.75", "32768"),
        ("Qwen/Qwen3-1.7B", "1", "0.15", "32768"),
        EAGLE,
    ),
    "qwen3-three": (
        ("Qwen/Qwen3-32B", "0,1", "0.52", "32768"),
        ("Qwen/Qwen3-8B", "0", "0.36", "32768"),
        ("Qwen/Qwen3-0.6B", "1", "0.2", "32768"),
        EAGLE,
    ),
    "qwq-32b": (
        ("Qwen/QwQ-32B", "0,1", "0.77", "16384"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "1", "0.12", "16384"),
        NGRAM,
    ),
    "deepseek-r1-32b": (
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "0,1", "0.75", "32768"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "1", "0.1", "32768"),
        NGRAM,
    ),
    "qwen3-8b-24gb": (
        ("Qwen/Qwen3-8B-AWQ", "0", "0.65", "16384"),
        ("Qwen/Qwen3-0.6B", "0", "0.25", "16384"),
        {"method": "draft_model", "num_speculative_tokens": 4, "model": "Qwen/Qwen3-0.6B"},
    ),
    "qwen3.8-27b": (
        ("Qwen/Qwen3.8-27B", "0", "0.9", "32768"),
        ("Qwen/Qwen3.5-4B", "1", "0.5", "32768"),
        {"method": "dflash", "num_speculative_tokens": 7, "model": "incoai/Qwen3.8-27B-DFlash2"},
    ),
    "gpt-oss-120b": (
        ("openai/gpt-oss-120b", "0", "0.9", "32768"),
        ("openai/gpt-oss-20b", "1", "0.5", "32768"),
        {"method": "eagle3", "num_speculative_tokens": 7, "model": "nvidia/gpt-oss-120b-Eagle3-v3"},
    ),
    "glm-4.7": (
        ("zai-org/GLM-4.7-FP8", "0,1,2,3", "0.9", "65536"),
        ("zai-org/GLM-4.7-Flash", "4", "0.7", "65536"),
        {"method": "mtp", "num_speculative_tokens": 1},
    ),
}
QWEN = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
SAMPLING: dict[str, dict[str, float]] = {
    "deepseek-r1-32b": {"temperature": 0.6, "top_p": 0.95},
    "gpt-oss-120b": {"temperature": 1.0, "top_p": 1.0},
    "glm-4.7": {"temperature": 1.0, "top_p": 0.95},
}
MINIATURE = {"miniature": ("large", "small"), "miniature-three": ("large", "small", "tiny")}


def flag(server: Server, name: str) -> str:
    return server.args[server.args.index(f"--{name}") + 1]


def test_every_recipe_is_tested_here() -> None:
    assert {path.stem for path in ALL} == {*COMMANDS, *MINIATURE}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_recipe_gives_the_commands_that_it_states(name: str) -> None:
    pair = load(RECIPES / f"{name}.toml")
    *stated, drafting = COMMANDS[name]
    for server, (model, cards, memory, context) in zip(servers(pair), stated, strict=True):
        assert (server.model, server.env["CUDA_VISIBLE_DEVICES"]) == (model, cards)
        assert (flag(server, "gpu-memory-utilization"), flag(server, "max-model-len")) == (memory, context)
        assert ("--tensor-parallel-size" in server.args) == ("," in cards)
    large, *others = servers(pair)
    assert isinstance(pair.large, StartedServer)
    assert json.loads(flag(large, "speculative-config")) == drafting
    assert not any("--speculative-config" in small.args for small in others)
    shared = set(pair.large.gpus) & {card for one in [*pair.started.values()][1:] for card in one.gpus}
    assert [len(wave) for wave in waves(pair)] == ([1, len(others)] if shared else [1 + len(others)])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_recipe_has_the_recommended_sampling(name: str) -> None:
    pair = load(RECIPES / f"{name}.toml")
    standing = {path: RunningServer("http://127.0.0.1:1/v1", "m") for path in pair.models}
    assert solver_settings(pair, standing)["sampling"] == SAMPLING.get(name, QWEN)


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_a_recipe_serves_every_model_under_its_own_name(path: Path) -> None:
    names = [server.served_name for server in servers(load(path))]
    assert not {*names} & {"large", "small", "auto", *policies.METHODS}
    assert len({*names}) == len(names)


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_a_recipe_leaves_a_tenth_of_each_card_free(path: Path) -> None:
    pair = load(path)
    for card in {card for server in pair.started.values() for card in server.gpus}:
        assert sum(server.memory for server in pair.started.values() if card in server.gpus) <= 0.9 + 1e-9


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_a_dry_run_of_a_recipe_passes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a machine with the cards that it is for, by what the driver says."""
    pair = load(path)
    mib = int((pair.card or 24) * 1024) + 300
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\n" + f"echo {mib}\n" * 8)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    monkeypatch.setattr(sys, "argv", ["stepspec", "up", str(path), "--dry-run"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    printed = capsys.readouterr()
    commands = [line for line in printed.out.splitlines() if not line.startswith("#")]
    assert len(commands) == len(pair.started)
    assert all("--scheduling-policy priority" in line for line in commands)
    assert printed.err == ""


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_recipe_fits_onto_its_cards_and_not_onto_much_smaller_ones(name: str) -> None:
    pair = load(RECIPES / f"{name}.toml")
    check_pair(pair, KNOWN)
    if pair.started["large"].model in SIZES:
        with pytest.raises(ConfigurationError, match="does not fit"):
            check_pair(pair.model_copy(update={"card": (pair.card or 0) * 0.3}), KNOWN)


@pytest.mark.parametrize("name", MINIATURE)
def test_a_miniature_recipe_equals_the_pair_of_the_testbed(name: str) -> None:
    pair = load(RECIPES / f"{name}.toml")
    check_pair(pair, inspect_machine(pair))
    for ours, theirs in zip(
        servers(pair), miniature_servers("off", MINIATURE[name], world=find_world(SHORT)), strict=True
    ):
        assert Path(ours.model) == Path(theirs.model).resolve()
        assert ours.served_name == theirs.served_name
        alike = {"--dtype", "--max-model-len", "--kv-cache-memory-bytes", "--block-size", "--max-num-seqs"}
        assert {one: flag(ours, one[2:]) for one in alike} == {one: flag(theirs, one[2:]) for one in alike}
        assert ours.env.get("OMP_NUM_THREADS") == theirs.env.get("OMP_NUM_THREADS")
        assert ("MALLOC_PERTURB_" in ours.env) == ("--enable-scale-out" in ours.args)


def test_the_model_that_reads_drafts_scores_suffixes_in_the_miniature_recipes() -> None:
    scoring = {
        name: [server.name for server in servers(load(RECIPES / f"{name}.toml")) if "--enable-scale-out" in server.args]
        for name in MINIATURE
    }
    assert scoring == {"miniature": ["large"], "miniature-three": ["small.large"]}


def test_the_miniature_pair_drafts_tokens_for_its_large_model() -> None:
    large, _ = servers(load(RECIPES / "miniature.toml"))
    drafting = {"method": "draft_model", "num_speculative_tokens": 4, "model": str((MODELS / "small").resolve())}
    assert json.loads(flag(large, "speculative-config")) == drafting


def test_the_pair_within_the_miniature_recipe_is_the_one_that_is_measured() -> None:
    within = load(RECIPES / "miniature-three.toml").nested["small"]
    assert {"policy": within.policy, "options": within.options} == NESTED[THREE.name]


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_a_policy_within_can_be_made(path: Path) -> None:
    for one in load(path).nested.values():
        models = ScriptedModel("small", counting("small", 2)), ScriptedModel("large", counting("large", 2))
        policies.make(one.policy, *models, **one.options)
