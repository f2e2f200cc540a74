"""The recipes parse, fit onto their cards by the sizes in the model cards, and give the stated commands."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.bench import NESTED, THREE
from stepspec import cli, policies
from stepspec.evals.testbed.servers import MODELS, miniature_servers
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.launcher import vllm_flags
from stepspec.orchestrator.launcher.commands import servers, solver_settings, waves
from stepspec.orchestrator.launcher.launch import RunningServer, Server
from stepspec.orchestrator.launcher.machine import (
    InstalledVllm,
    MachineFacts,
    ModelFiles,
    inspect_machine,
    installed_vllm,
)
from stepspec.orchestrator.launcher.pair import METHODS, Pair, StartedServer, load
from stepspec.orchestrator.launcher.preflight import check_pair, warnings
from stepspec.orchestrator.launcher.vllm_flags import ParsedFlags

from .fakes import ScriptedModel, counting
from .orchestrator.launcher.configs import CONFIGS

RECIPES = Path(__file__).parent.parent / "recipes"
ALL = sorted(RECIPES.glob("*.toml"))
KNOWN = MachineFacts(
    InstalledVllm("0.32.0", frozenset(METHODS), suffix_decoding=False),
    {(name, None): ModelFiles(config) for name, config in CONFIGS.items()},
)
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
UNSIZED = frozenset({"qwen3.8-27b", "gpt-oss-120b", "glm-4.7"})
"""Recipes whose models have sizes that no formula here has been checked on."""

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
    assert not any("less than a tenth" in one for one in warnings(load(path), KNOWN))


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_a_dry_run_of_a_recipe_passes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a machine with the cards that it is for, by what the driver says."""
    pair = load(path)
    mib = int((pair.card or 24) * 1024) + 300
    script = tmp_path / "nvidia-smi"
    lines = "".join(f"echo '{at}, GPU-{at}, {mib}, NVIDIA TEST'\n" for at in range(8))
    script.write_text(f"#!/bin/sh\n{lines}")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    known = frozenset(flag for one in pair.started.values() for flag in one.flags)

    def parsed(*_: object) -> ParsedFlags:  # vLLM itself checks all recipes at once below
        return ParsedFlags(known, {})

    monkeypatch.setattr(vllm_flags, "parse", parsed)
    monkeypatch.setattr(sys, "argv", ["stepspec", "up", str(path), "--dry-run"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    printed = capsys.readouterr()
    commands = [line for line in printed.out.splitlines() if not line.startswith("#")]
    assert len(commands) == len(pair.started)
    assert all("--scheduling-policy priority" in line for line in commands)
    assert ("warning: " in printed.err) == ("share GPU" in printed.err)


@pytest.mark.servers
def test_the_installed_vllm_takes_every_command_line_of_every_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own parser reads them, with the names of parsers and the methods of speculation."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = {f"{path.stem} {one.name}": one for path in ALL for one in servers(load(path))}
    result = vllm_flags.parse({name: one.command(8000)[len(one.program) :] for name, one in made.items()})
    assert isinstance(result, ParsedFlags), result
    assert dict(result.refusals) == dict.fromkeys(made, "")
    assert {flag for path in ALL for one in load(path).started.values() for flag in one.flags} <= result.flags
    known = installed_vllm()
    assert known is not None
    assert known.methods is not None
    assert {one.speculation.method for path in ALL for one in load(path).started.values()} <= {*known.methods, "none"}


@pytest.mark.parametrize("name", sorted(UNSIZED))
def test_unknown_facts_of_a_missing_model_are_reported_and_do_not_block(name: str) -> None:
    pair = load(RECIPES / f"{name}.toml")
    unchecked = check_pair(pair, KNOWN)
    for one in pair.started.values():
        assert any(one.model in each for each in unchecked)


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - UNSIZED))
def test_a_recipe_fits_onto_its_cards_and_not_onto_much_smaller_ones(name: str) -> None:
    pair = load(RECIPES / f"{name}.toml")
    unchecked = check_pair(pair, KNOWN)
    assert all("speculator" in one for one in unchecked)
    assert len(unchecked) == (COMMANDS[name][-1] == EAGLE)
    smaller = pair.model_copy(update={"card": (pair.card or 0) * 0.6})
    with pytest.raises(ConfigurationError, match="does not fit"):
        check_pair(smaller, KNOWN)


@pytest.mark.parametrize("name", ["qwq-32b", "deepseek-r1-32b"])
def test_the_recipes_are_right_about_pairs_that_cannot_draft_for_each_other(name: str) -> None:
    pair = load(RECIPES / f"{name}.toml")
    large: dict[str, Any] = {**pair.large.model_dump(), "speculation": "draft_model"}
    wrong = Pair.model_validate({**pair.model_dump(), "large": large})
    with pytest.raises(ConfigurationError, match="152064 and 151936 rows"):
        check_pair(wrong, KNOWN)


@pytest.mark.parametrize("name", MINIATURE)
def test_a_miniature_recipe_equals_the_pair_of_the_testbed(name: str) -> None:
    pair = load(RECIPES / f"{name}.toml")
    assert check_pair(pair, inspect_machine(pair)) == ()
    for ours, theirs in zip(servers(pair), miniature_servers("off", MINIATURE[name]), strict=True):
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
    assert {"policy": within.policy, "options": within.options, "ahead": within.ahead} == NESTED[THREE.name]


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_a_policy_within_can_be_made(path: Path) -> None:
    for one in load(path).nested.values():
        models = ScriptedModel("small", counting("small", 2)), ScriptedModel("large", counting("large", 2))
        policies.make(one.policy, *models, **one.options)
