"""The recipes parse, fit onto their cards by the sizes that the models' cards state, and come to what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepspec.evals.testbed.servers import MODELS, miniature_servers
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.serving.checks import refuse
from stepspec.orchestrator.serving.commands import servers, waves
from stepspec.orchestrator.serving.facts import Facts, Files, look
from stepspec.orchestrator.serving.installed import Installed
from stepspec.orchestrator.serving.pair import Pair, load
from stepspec.orchestrator.serving.server import Server
from stepspec.orchestrator.serving.speculation import METHODS

from .orchestrator.serving.configs import CONFIGS

RECIPES = Path(__file__).parent.parent / "recipes"
ALL = sorted(RECIPES.glob("*.toml"))
KNOWN = Facts(
    Installed("0.32.0", frozenset(METHODS), suffixes=False),
    {(name, None): Files(config) for name, config in CONFIGS.items()},
)
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
COMMANDS: dict[str, Any] = {
    "qwen3-32b": (
        ("Qwen/Qwen3-32B", "0,1", "0.75", "32768"),
        ("Qwen/Qwen3-1.7B", "1", "0.15", "32768"),
        {"method": "eagle3", "num_speculative_tokens": 3, "model": "RedHatAI/Qwen3-32B-speculator.eagle3"},
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


def flag(server: Server, name: str) -> str:
    return server.args[server.args.index(f"--{name}") + 1]


def test_every_recipe_is_tested_here() -> None:
    assert {path.stem for path in ALL} == {*COMMANDS, "miniature"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_recipe_comes_to_the_commands_that_it_states(name: str) -> None:
    pair = load(RECIPES / f"{name}.toml")
    for server, (model, cards, memory, context) in zip(servers(pair), COMMANDS[name], strict=False):
        assert (server.model, server.env["CUDA_VISIBLE_DEVICES"]) == (model, cards)
        assert (flag(server, "gpu-memory-utilization"), flag(server, "max-model-len")) == (memory, context)
        assert ("--tensor-parallel-size" in server.args) == ("," in cards)
    large, small = servers(pair)
    assert json.loads(flag(large, "speculative-config")) == COMMANDS[name][2]
    assert "--speculative-config" not in small.args
    assert [len(wave) for wave in waves(pair)] == [1, 1]  # they share a card


@pytest.mark.parametrize("name", COMMANDS)
def test_a_recipe_fits_onto_its_cards_and_not_onto_much_smaller_ones(name: str) -> None:
    pair = load(RECIPES / f"{name}.toml")
    unchecked = refuse(pair, KNOWN)
    assert all("speculator" in one for one in unchecked)
    assert len(unchecked) == (name == "qwen3-32b")
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


def test_the_miniature_recipe_is_what_the_testbed_starts() -> None:
    pair = load(RECIPES / "miniature.toml")
    assert refuse(pair, look(pair)) == ()
    for ours, theirs in zip(servers(pair), miniature_servers("off"), strict=True):
        assert Path(ours.model) == Path(theirs.model).resolve()
        assert ours.served_name == theirs.served_name
        alike = {"--dtype", "--max-model-len", "--kv-cache-memory-bytes", "--block-size", "--max-num-seqs"}
        assert {one: flag(ours, one[2:]) for one in alike} == {one: flag(theirs, one[2:]) for one in alike}
        assert ("--enable-scale-out" in ours.args) == ("--enable-scale-out" in theirs.args)
        assert ours.env.get("MALLOC_PERTURB_") == theirs.env.get("MALLOC_PERTURB_")
    large, _ = servers(pair)
    drafting = {"method": "draft_model", "num_speculative_tokens": 4, "model": str((MODELS / "small").resolve())}
    assert json.loads(flag(large, "speculative-config")) == drafting
