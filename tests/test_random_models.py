"""
Models of random weights: every group of tokens has its share, and vLLM reads the written tokens.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from stepspec.evals.testbed.servers import MODELS
from tests.random_models import CONSTANT, GROUPS, SPREAD, WIDTH, biases, make_model

VOCABULARY = MODELS / "small" / "tokenizer.json"


def test_every_group_of_tokens_has_its_share_of_the_probability() -> None:
    tokenizer = Tokenizer.from_file(str(VOCABULARY))
    weights = np.exp(biases(tokenizer))
    chances = weights / weights.sum()
    added = tokenizer.get_added_tokens_decoder()
    shares = [0.0] * len(GROUPS)
    for number, chance in enumerate(chances):
        text = tokenizer.decode([number], skip_special_tokens=False)
        place = next(
            (at for at, group in enumerate(GROUPS) if group.holds(text, number in added)), None
        )
        if place is not None:
            shares[place] += chance
    met = [at for at, share in enumerate(shares) if share]
    assert len(met) >= 6
    assert [shares[at] for at in met] == pytest.approx([GROUPS[at].share for at in met], rel=1e-3)


def test_a_model_has_its_vocabularys_size_and_the_biases_in_its_output_layer(
    tmp_path: Path,
) -> None:
    make_model(tmp_path, VOCABULARY, 1)
    config = json.loads((tmp_path / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert config["vocab_size"] == 640  # rounded up: there are ids without a meaning
    assert config["eos_token_id"] == tokenizer.token_to_id("<|im_end|>")
    weights = load_file(tmp_path / "model.safetensors")
    hidden = np.full(WIDTH, 1.0)
    hidden[0] = CONSTANT
    hidden *= np.sqrt(WIDTH) / np.linalg.norm(hidden)  # as the last norm leaves it
    size = tokenizer.get_vocab_size()
    constant = weights["lm_head.weight"][:size, 0].astype(np.float64) * hidden[0]
    assert constant == pytest.approx(biases(tokenizer), abs=0.02)
    others = weights["lm_head.weight"][:, 1:].astype(np.float64) @ hidden[1:]
    assert np.std(others) == pytest.approx(SPREAD, rel=0.2)


def test_the_same_seed_makes_the_same_model_and_another_one_another(tmp_path: Path) -> None:
    first, again, other = (
        make_model(tmp_path / name, VOCABULARY, seed)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    weights = [(folder / "model.safetensors").read_bytes() for folder in (first, again, other)]
    assert weights[0] == weights[1] != weights[2]


def test_a_reward_model_gives_values_and_writes_nothing(tmp_path: Path) -> None:
    make_model(tmp_path, VOCABULARY, 3, labels=1)
    weights = load_file(tmp_path / "model.safetensors")
    assert weights["score.weight"].shape == (1, WIDTH)
    assert "lm_head.weight" not in weights
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["architectures"], config["num_labels"]) == (
        ["Qwen3ForSequenceClassification"],
        1,
    )
