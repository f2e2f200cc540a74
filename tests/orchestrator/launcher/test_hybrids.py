"""Hybrids are known by their configuration, and their servers are given the flags that their prefix cache needs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lab.random_models import HYBRID_SHAPE
from stepspec.evals.testbed.servers import MODELS
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.launcher import machine, vllm_flags
from stepspec.orchestrator.launcher.machine import InstalledVllm
from stepspec.orchestrator.launcher.pair import Pair, StartedServer
from stepspec.orchestrator.launcher.preflight import is_hybrid
from stepspec.orchestrator.launcher.up import command_lines, load_checked
from stepspec.orchestrator.launcher.vllm_flags import HYBRID_FLAGS

from .configs import CONFIGS

QWEN = {**HYBRID_SHAPE, "model_type": "qwen3_next", "vocab_size": 704}
SPELLED = "--mamba-cache-mode align --prefix-match-unit 16"
PARSER = """
import json, sys
lines = json.load(sys.stdin)
known = {known}
refusals = {{name: "" for name in lines}}
print(json.dumps({{"flags": known, "refusals": refusals}}))
"""
NEW = [*HYBRID_FLAGS, "max-num-seqs", "mamba-block-size"]


@pytest.mark.parametrize(
    "config",
    [
        QWEN,
        {"text_config": QWEN},
        {"model_type": "qwen3_5", "text_config": {"full_attention_interval": 4}},
        {"layer_types": ["conv", "conv", "full_attention"]},
        {"layer_types": ["mamba", "attention"]},
        {"layers_block_type": ["mamba", "hybrid"]},
        {"linear_attn_config": {"kda_layers": [1]}},
        {"hybrid_override_pattern": "M-M*-"},
        {"attn_layer_period": 8},
    ],
)
def test_a_hybrid_is_recognised_by_its_configuration(config: Mapping[str, Any]) -> None:
    assert is_hybrid(config)


@pytest.mark.parametrize(
    "config",
    [
        *CONFIGS.values(),
        json.loads((MODELS / "large" / "config.json").read_text()),
        {"layer_types": ["sliding_attention", "full_attention"]},
        {"layer_types": ["mamba", "mamba"]},  # No attention: the match unit would be refused.
        {"full_attention_interval": 1},
    ],
)
def test_others_are_not_taken_for_one(config: Mapping[str, Any]) -> None:
    assert not is_hybrid(config)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pair of a hybrid and of a model that is none, on a machine whose vLLM knows the flags."""
    monkeypatch.setattr(
        machine, "installed_vllm", lambda: InstalledVllm("0.32.0", frozenset({"mtp", "ngram"}), suffix_decoding=False)
    )
    parser(monkeypatch, NEW)
    for name, config in {"hybrid": QWEN, "plain": CONFIGS["Qwen/Qwen3-0.6B"]}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    return tmp_path / "pair.toml"


def parser(monkeypatch: pytest.MonkeyPatch, known: list[str]) -> None:
    """Let a script stand in for vLLM's parser, which knows the flags *known*."""
    monkeypatch.setattr(vllm_flags, "WORKER", (sys.executable, "-c", PARSER.format(known=known)))


def brought(file: Path, large: str = "", small: str = 'model = "./plain"') -> Pair:
    own = 'model = "./hybrid"\ngpus = []\ncontext = 4096\n'
    file.write_text(f"[large]\n{own}{large}\n[small]\ngpus = []\ncontext = 4096\n{small}\n")
    return load_checked(file, Console(width=300))


def started(pair: Pair, path: str) -> StartedServer:
    return pair.started[path]


def test_the_flags_are_set_and_reported(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = brought(file)
    assert started(pair, "large").flags == HYBRID_FLAGS
    assert started(pair, "small").flags == {}
    assert SPELLED in command_lines(pair).splitlines()[0]
    assert "mamba" not in command_lines(pair).splitlines()[1]
    assert f"large: a hybrid: {SPELLED}" in capsys.readouterr().out


def test_a_hybrid_within_a_nested_pair_gets_the_flags_too(file: Path) -> None:
    one = 'gpus = []\ncontext = 4096\nmodel = "./hybrid"'
    within = f"[small.large]\n{one}\nname = 'other'\n[small.small]\n{one.replace('hybrid', 'plain')}\n"
    file.write_text(f"[large]\n{one}\n{within}")
    pair = load_checked(file, Console(quiet=True))
    assert {path: dict(one.flags) for path, one in pair.started.items()} == {
        "large": HYBRID_FLAGS,
        "small.large": HYBRID_FLAGS,
        "small.small": {},
    }


@pytest.mark.parametrize(
    "own", ["flags = { prefix-match-unit = 64 }", "flags = { mamba-block-size = 1024 }", "prefix_caching = false"]
)
def test_flags_of_the_user_are_kept(own: str, file: Path) -> None:
    pair = brought(file, own)
    assert "mamba-cache-mode" not in started(pair, "large").flags


def test_other_flags_stay(file: Path) -> None:
    assert started(brought(file, "flags = { max-num-seqs = 3 }"), "large").flags == {"max-num-seqs": 3, **HYBRID_FLAGS}


def test_a_vllm_without_the_flags_starts_without_them_and_a_note_says_so(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parser(monkeypatch, ["max-num-seqs"])
    assert started(brought(file), "large").flags == {}
    assert f"this vLLM caches in large blocks: no {SPELLED}" in capsys.readouterr().out
    with pytest.raises(ConfigurationError, match="no flag 'max-num-seq'"):
        brought(file, "flags = { max-num-seq = 3 }")


def test_an_unavailable_parser_changes_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vllm_flags, "WORKER", (sys.executable, "-c", "raise SystemExit(3)"))
    assert started(brought(file), "large").flags == {}
    assert "vLLM's parser could not be run" in capsys.readouterr().out


def test_drafted_tokens_under_a_hybrid_are_warned_of(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    brought(file, 'speculation = "mtp"')
    output = capsys.readouterr().out
    assert "warning: large: " in output
    assert "by mtp (vllm#54360, vllm#53504)" in output
    brought(file, "", 'model = "./plain"\nspeculation = "ngram"')
    assert "warning" not in capsys.readouterr().out


def test_the_installed_vllm_has_the_flags(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm")
    monkeypatch.undo()
    pair = brought(file)
    assert started(pair, "large").flags == HYBRID_FLAGS
