"""The recipes parse, fit onto their cards by the sizes that the models' cards state, and come to what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepspec import policies
from stepspec.evals.nested import NESTED, THREE
from stepspec.evals.testbed.servers import MODELS, miniature_servers
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.serving.checks import refuse
from stepspec.orchestrator.serving.commands import servers, waves
from stepspec.orchestrator.serving.facts import Facts, Files, look
from stepspec.orchestrator.serving.file import load
from stepspec.orchestrator.serving.installed import Installed
from stepspec.orchestrator.serving.pair import Pair
from stepspec.orchestrator.serving.server import Server
from stepspec.orchestrator.serving.speculation import METHODS

from .fakes import ScriptedModel, counting
from .orchestrator.serving.configs import CONFIGS

RECIPES = Path(__file__).parent.parent / "recipes"
ALL = sorted(RECIPES.glob("*.toml"))
KNOWN = Facts(
    Installed("0.32.0", frozenset(METHODS), suffixes=False),
    {(name, None): Files(config) for name, config in CONFIGS.items()},
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
        ("Qwen/Qwen3-32B", "0,1", "0.58", "32768"),
        ("Qwen/Qwen3-8B", "0", "0.4", "32768"),
        ("Qwen/Qwen3-0.6B", "1", "0.2", "32768"),
        EAGLE,
    ),
    "qwq-32b": (
        ("Qwen/QwQ-32B", "0,1", "0.78", "16384"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "1", "0.15", "16384"),
        NGRAM,
    ),
    "deepseek-r1-32b": (
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "0", "0.87", "16384"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "0", "0.1", "16384"),
        NGRAM,
    ),
    "qwen3-8b-24gb": (
        ("Qwen/Qwen3-8B-AWQ", "0", "0.65", "16384"),
        ("Qwen/Qwen3-0.6B", "0", "0.25", "16384"),
        {"method": "draft_model", "num_speculative_tokens": 4, "model": "Qwen/Qwen3-0.6B"},
    ),
}

MINIATURE = {"miniature": ("large", "small"), "miniature-three": ("large", "small", "tiny")}


def flag(server: Server, name: str) -> str:
    return server.args[server.args.index(f"--{name}") + 1]


def test_every_recipe_is_tested_here() -> None:
    assert {path.stem for path in ALL} == {*COMMANDS, *MINIATURE}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_recipe_comes_to_the_commands_that_it_states(name: str) -> None:
    pair = load(RECIPES / f"{name}.toml")
    *stated, drafting = COMMANDS[name]
    for server, (model, cards, memory, context) in zip(servers(pair), stated, strict=True):
        assert (server.model, server.env["CUDA_VISIBLE_DEVICES"]) == (model, cards)
        assert (flag(server, "gpu-memory-utilization"), flag(server, "max-model-len")) == (memory, context)
        assert ("--tensor-parallel-size" in server.args) == ("," in cards)
    large, *others = servers(pair)
    assert json.loads(flag(large, "speculative-config")) == drafting
    assert not any("--speculative-config" in small.args for small in others)
    assert [len(wave) for wave in waves(pair)] == [1, len(others)]  # the large one shares its cards with all others


@pytest.mark.parametrize("name", COMMANDS)
def test_a_recipe_fits_onto_its_cards_and_not_onto_much_smaller_ones(name: str) -> None:
    pair = load(RECIPES / f"{name}.toml")
    unchecked = refuse(pair, KNOWN)
    assert all("speculator" in one for one in unchecked)
    assert len(unchecked) == (COMMANDS[name][-1] == EAGLE)
    smaller = pair.model_copy(update={"card": (pair.card or 0) * 0.6})
    with pytest.raises(ConfigurationError, match="does not fit"):
        refuse(smaller, KNOWN)


@pytest.mark.parametrize("name", ["qwq-32b", "deepseek-r1-32b"])
def test_the_recipes_say_rightly_that_these_pairs_cannot_draft_for_each_other(name: str) -> None:
    pair = load(RECIPES / f"{name}.toml")
    large: dict[str, Any] = {**pair.large.model_dump(), "speculation": "draft_model"}
    wrong = Pair.model_validate({**pair.model_dump(), "large": large})
    with pytest.raises(ConfigurationError, match="152064 and 151936 rows"):
        refuse(wrong, KNOWN)


@pytest.mark.parametrize("name", MINIATURE)
def test_a_miniature_recipe_is_what_the_testbed_starts(name: str) -> None:
    pair = load(RECIPES / f"{name}.toml")
    assert refuse(pair, look(pair)) == ()
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
