"""The size of a model, from its configuration alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.worlds import SHORT, find_world
from stepspec.orchestrator.launcher.preflight import GIB, model_shape

from .configs import CONFIGS


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("Qwen/Qwen3-32B", 32.8),
        ("Qwen/Qwen3-8B", 8.2),
        ("Qwen/Qwen3-1.7B", 1.7),
        ("Qwen/Qwen3-0.6B", 0.6),
        ("Qwen/Qwen3-30B-A3B", 30.5),
        ("Qwen/QwQ-32B", 32.8),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1.8),
    ],
)
def test_models_have_the_parameters_that_their_cards_state(model: str, billions: float) -> None:
    sized = model_shape(CONFIGS[model])
    assert sized is not None
    assert sized.parameters / 1e9 == pytest.approx(billions, abs=0.05)
    assert sized.weights() == 2 * sized.parameters


def test_the_miniature_models_have_the_parameters_that_their_files_hold() -> None:
    for name in ("large", "small", "small-other"):
        sized = model_shape(json.loads((find_world(SHORT).model(name) / "config.json").read_text()))
        weights = find_world(SHORT).model(name) / "model.safetensors"
        head = int.from_bytes(weights.read_bytes()[:8], "little") + 8
        assert sized is not None
        # Qwen3 also normalises queries and keys, by two heads a layer.
        assert weights.stat().st_size - head == sized.weights() + 2 * 2 * sized.layers * sized.head


def test_a_tokens_keys_and_values_are_those_of_every_layer() -> None:
    sized = model_shape(CONFIGS["Qwen/Qwen3-32B"])
    assert sized is not None
    assert sized.token() == 2 * 64 * 8 * 128 * 2 == 256 * 1024
    assert sized.token(number_bytes=1) == sized.token() / 2
    assert sized.token(2) == sized.token() / 2
    assert sized.token(16) == sized.token(8)  # a head of keys is never divided


def test_tensor_parallelism_divides_the_weights() -> None:
    sized = model_shape(CONFIGS["Qwen/Qwen3-32B"])
    assert sized is not None
    assert sized.weights(2) * 2 == sized.weights()


def test_quantisation_leaves_the_vocabulary_alone() -> None:
    full, quartered = model_shape(CONFIGS["Qwen/Qwen3-8B"]), model_shape(CONFIGS["Qwen/Qwen3-8B-AWQ"])
    assert full is not None
    assert quartered is not None
    vocabulary = 2 * 2 * 151936 * 4096
    assert quartered.weights() - vocabulary == pytest.approx((full.weights() - vocabulary) / 4)
    assert quartered.weights() / GIB == pytest.approx(5.6, abs=0.05)
    fp8 = model_shape({**CONFIGS["Qwen/Qwen3-8B"], "quantization_config": {"quant_method": "fp8"}})
    assert fp8 is not None
    assert fp8.weights() - vocabulary == pytest.approx((full.weights() - vocabulary) / 2)


def test_the_type_of_the_numbers_may_be_chosen() -> None:
    chosen = model_shape(CONFIGS["Qwen/Qwen3-1.7B"], "float32")
    assert chosen is not None
    assert chosen.weights() == 4 * chosen.parameters
    halved = model_shape({**CONFIGS["Qwen/Qwen3-1.7B"], "torch_dtype": "float32"})  # which vLLM halves by itself
    assert halved is not None
    assert halved.weights() == 2 * halved.parameters


@pytest.mark.parametrize(
    "other",
    [
        {"kv_lora_rank": 512},
        {"layer_types": ["full_attention", "linear_attention"]},
        {"decoder_sparse_step": 2},
        {"hidden_size": None},
        {"torch_dtype": "int3"},
        {"quantization_config": {"quant_method": "mystery"}},
    ],
)
def test_models_outside_of_the_formula_have_no_size(other: dict[str, Any]) -> None:
    assert model_shape({**CONFIGS["Qwen/Qwen3-8B"], **other}) is None


def test_a_model_within_a_model_is_sized_as_itself() -> None:
    text = dict(CONFIGS["Qwen/Qwen3-8B"])
    assert model_shape({"model_type": "sees", "text_config": text}) == model_shape(text)
