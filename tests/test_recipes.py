"""The recipes parse, share their cards, and pass a dry run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepspec import policies
from stepspec.evals.testbed.servers import MODELS, miniature_servers
from stepspec.servers.launcher.check import check_pair
from stepspec.servers.launcher.commands import servers, solver_settings
from stepspec.servers.launcher.launch import ServerCommand
from stepspec.servers.launcher.pair import load

from .test_cli import call

RECIPES = Path(__file__).parent.parent / "recipes"
ALL = sorted(RECIPES.glob("*.toml"))
QWEN = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
SAMPLING: dict[str, dict[str, float]] = {
    "deepseek-r1-32b": {"temperature": 0.6, "top_p": 0.95},
    "gpt-oss-120b": {"temperature": 1.0, "top_p": 1.0},
    "glm-4.7": {"temperature": 1.0, "top_p": 0.95},
}
MINIATURE = ("miniature",)
HUB = [path for path in ALL if path.stem not in MINIATURE]
each_recipe = pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
each_of_the_hub = pytest.mark.parametrize("path", HUB, ids=lambda path: path.stem)


def flag(server: ServerCommand, name: str) -> str:
    return server.args[server.args.index(f"--{name}") + 1]


@each_of_the_hub
def test_a_recipe_speculates_with_the_large_model_alone_and_has_the_recommended_sampling(
    path: Path,
) -> None:
    pair = load(path)
    large, *others = servers(pair)
    assert "--speculative-config" in large.args
    assert not any("--speculative-config" in small.args for small in others)
    urls = dict.fromkeys(pair.models, "http://127.0.0.1:1/v1")
    assert solver_settings(pair, urls)["sampling"] == SAMPLING.get(path.stem, QWEN)


@each_recipe
def test_a_recipe_names_every_model_differently_and_leaves_a_tenth_of_each_card_free(
    path: Path,
) -> None:
    pair = load(path)
    names = [server.served_name for server in servers(pair)]
    assert not {*names} & {"large", "small", "auto", *policies.METHODS}
    assert len({*names}) == len(names)
    models = pair.models.values()
    for card in {card for server in models for card in server.gpus}:
        assert sum(server.memory for server in models if card in server.gpus) <= 0.9 + 1e-9


@each_recipe
def test_a_dry_run_of_a_recipe_passes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a machine with eight cards, by what the driver says."""
    pair = load(path)
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\nseq 0 7\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    assert call("up", str(path), "--dry-run") == 0
    printed = capsys.readouterr()
    commands = [line for line in printed.out.splitlines() if not line.startswith("#")]
    assert len(commands) == len(pair.models)
    assert all("--scheduling-policy priority" in line for line in commands)
    assert printed.err == ""


@pytest.mark.parametrize("name", MINIATURE)
def test_a_miniature_recipe_equals_the_pair_of_the_testbed(name: str) -> None:
    pair = load(RECIPES / f"{name}.toml")
    check_pair(pair)
    for ours, theirs in zip(
        servers(pair),
        miniature_servers("off"),
        strict=True,
    ):
        assert Path(ours.model) == Path(theirs.model).resolve()
        assert ours.served_name == theirs.served_name
        alike = {
            "--dtype",
            "--max-model-len",
            "--kv-cache-memory-bytes",
            "--block-size",
            "--max-num-seqs",
        }
        assert {one: flag(ours, one[2:]) for one in alike} == {
            one: flag(theirs, one[2:]) for one in alike
        }
        assert ours.env.get("OMP_NUM_THREADS") == theirs.env.get("OMP_NUM_THREADS")
        assert ("MALLOC_PERTURB_" in ours.env) == ("--enable-scale-out" in ours.args)


def test_the_models_of_the_miniature_recipes_are_set_as_they_are_measured() -> None:
    pairs = {name: load(RECIPES / f"{name}.toml") for name in MINIATURE}
    scoring = {
        name: [server.name for server in servers(pair) if "--enable-scale-out" in server.args]
        for name, pair in pairs.items()
    }
    assert scoring == {"miniature": ["large"]}
    large, _ = servers(pairs["miniature"])
    drafting = {
        "method": "draft_model",
        "num_speculative_tokens": 4,
        "model": str((MODELS / "small").resolve()),
    }
    assert json.loads(flag(large, "speculative-config")) == drafting
