"""Impossible configurations are refused before any start, with the cure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.installation import install_command
from stepspec.orchestrator.launcher.machine import Card, InstalledVllm, MachineFacts, ModelFiles
from stepspec.orchestrator.launcher.pair import Pair, StartedServer
from stepspec.orchestrator.launcher.preflight import check_pair, memory_need, model_shape, warnings

from .configs import CONFIGS, decoder

LARGE, SMALL = "Qwen/Qwen3-32B", "Qwen/Qwen3-1.7B"
VLLM = InstalledVllm("0.32.0", frozenset({"ngram", "suffix", "draft_model", "eagle3", "medusa"}), suffix_decoding=False)
WORDS: Mapping[str, int] = {"a": 0, "b": 1, "c": 2}


def facts(vllm: InstalledVllm | None = VLLM, **found: Any) -> MachineFacts:
    files = {(name, None): ModelFiles(config) for name, config in CONFIGS.items()}
    return MachineFacts(vllm, found.pop("files", files), **found)


def cards_of(*sizes: float | None, name: str = "") -> tuple[Card, ...]:
    return tuple(Card(gib, name) for gib in sizes)


def pair(large: dict[str, Any] | None = None, small: dict[str, Any] | None = None, **more: Any) -> Pair:
    roles = {
        "large": {"model": LARGE, "gpus": [0], "memory": 0.9, **(large or {})},
        "small": {"model": SMALL, "gpus": [1], "memory": 0.9, **(small or {})},
    }
    return Pair.model_validate({**roles, "card": 79, **more})


def complaint(wrong: Pair, known: MachineFacts) -> str:
    with pytest.raises(ConfigurationError) as failure:
        check_pair(wrong, known)
    return str(failure.value)


def test_a_pair_that_fits_is_let_through() -> None:
    assert check_pair(pair(), facts(cards=cards_of(79.2, 79.2))) == ()


def test_without_vllm_nothing_can_be_started_but_it_may_be_connected_to() -> None:
    assert f"vLLM is not installed: {install_command('vllm')}; without a GPU" in complaint(pair(), facts(None))
    elsewhere = Pair.model_validate({"large": {"url": "http://a:1"}, "small": {"url": "http://b:1"}})
    assert check_pair(elsewhere, facts(None)) == ()


def test_a_method_that_the_installed_vllm_lacks_is_named_with_those_it_has() -> None:
    message = complaint(pair({"speculation": {"method": "dflash", "model": "m", "tokens": 15}}), facts())
    assert "vLLM 0.32.0 has no method 'dflash'; it has: ngram, suffix, draft_model, eagle3, medusa" in message


def test_suffix_needs_arctic_inference() -> None:
    wrong = pair({"speculation": "suffix"})
    assert "suffix needs arctic-inference, which is not installed: pip install arctic-" in complaint(wrong, facts())
    has = InstalledVllm("0.32.0", VLLM.methods, suffix_decoding=True)
    assert check_pair(wrong, facts(has)) == ()


def test_a_model_that_does_not_fit_is_refused_with_the_sum() -> None:
    message = complaint(pair(card=47), facts())
    assert "large does not fit: it takes 66.5 GiB (61.0 for weights, 4.0 for the keys and values" in message
    assert "may use 0.9 of 47 GiB: raise large.memory, lower large.context, use more gpus" in message
    assert check_pair(pair({"gpus": [0, 2]}, card=47), facts()) == ()


def test_a_model_that_fits_alone_may_not_fit_with_its_drafter() -> None:
    tight = {"memory": 0.85}
    assert check_pair(pair(tight), facts()) == ()
    assert "for its drafter" in complaint(pair({**tight, "speculation": "draft_model"}), facts())


def test_smaller_keys_and_values_and_no_graphs_make_room() -> None:
    sized = model_shape(CONFIGS[LARGE])
    assert sized is not None
    plain = memory_need(StartedServer(model=LARGE), sized, None)
    halved = memory_need(StartedServer(model=LARGE, flags={"kv-cache-dtype": "fp8_e4m3"}), sized, None)
    eager = memory_need(StartedServer(model=LARGE, flags={"enforce-eager": True}), sized, None)
    assert halved.tokens == plain.tokens / 2
    assert plain.total - eager.total == 1.0


def test_the_size_of_a_card_comes_from_the_file_or_the_driver() -> None:
    unsaid = Pair.model_validate({"large": {"model": LARGE}, "small": {"model": SMALL, "gpus": [1]}})
    assert "may use 0.9 of 24 GiB" in complaint(unsaid, facts(cards=cards_of(24.0, 79.0)))
    assert check_pair(unsaid, facts(cards=cards_of(79.0, 24.0))) == ()


def test_skipped_checks_are_reported() -> None:
    unsaid = Pair.model_validate({"large": {"model": LARGE}, "small": {"model": "new/small", "gpus": [1]}})
    notes = check_pair(unsaid, facts())
    assert notes == (
        "large: the memory of its GPUs: nvidia-smi does not tell; say `card = GIB` at the top of the file",
        "small: the memory and the vocabulary of new/small, which is not on this machine yet",
        "small: the memory of its GPUs: nvidia-smi does not tell; say `card = GIB` at the top of the file",
    )
    odd = {
        (LARGE, None): ModelFiles({**CONFIGS[LARGE], "kv_lora_rank": 512}),
        (SMALL, None): ModelFiles(CONFIGS[SMALL]),
    }
    (told_of_odd,) = check_pair(pair(), facts(files=odd))
    assert "no decoder that the formula fits" in told_of_odd
    assert (
        "its source does not list them"
        in check_pair(pair(), facts(InstalledVllm("9.9", None, suffix_decoding=False)))[0]
    )


def test_two_models_on_one_card_must_share_it() -> None:
    shared = pair({"memory": 0.9}, {"gpus": [0], "memory": 0.2})
    assert "GPU 0: the shares of its memory exceed 1 (large.memory 0.9 + small.memory 0.2 > 1)" in complaint(
        shared, facts()
    )
    assert check_pair(pair({"memory": 0.9}, {"gpus": [0], "memory": 0.1}), facts()) == ()


def test_a_card_that_is_not_there_is_named() -> None:
    assert "small: there is no GPU 1; the driver knows 1" in complaint(pair(), facts(cards=cards_of(79.2)))


@pytest.mark.parametrize(
    ("allotted", "cards", "message"),
    [
        (("4",), (79.0,), "there is no GPU 1; CUDA_VISIBLE_DEVICES allows 4, which gpus number from 0"),
        (("GPU-a",), (None,), "there is no GPU 1; CUDA_VISIBLE_DEVICES allows GPU-a, which gpus number from 0"),
        (("4", "9"), (79.0,), "allows 4, 9, which gpus number from 0, and the driver does not know 9"),
        ((), (), "there is no GPU 0; CUDA_VISIBLE_DEVICES allows none"),
    ],
)
def test_an_unallotted_card_is_refused_with_the_allotted_ones(
    allotted: tuple[str, ...], cards: tuple[float | None, ...], message: str
) -> None:
    assert message in complaint(pair(), facts(cards=cards_of(*cards), visible=allotted))


def test_a_card_of_unknown_size_is_reported_and_the_others_are_checked() -> None:
    unsaid = Pair.model_validate({"large": {"model": LARGE, "gpus": [0, 1]}, "small": {"model": SMALL, "gpus": [2]}})
    (warning,) = check_pair(unsaid, facts(cards=cards_of(79.0, None, None), visible=("5", "MIG-a", "MIG-b")))
    assert warning.startswith("small: the memory of its GPUs: nvidia-smi does not tell")
    assert "may use 0.9 of 24 GiB" in complaint(unsaid, facts(cards=cards_of(None, 24.0, 79.0)))


def test_an_address_in_use_is_named() -> None:
    wrong = pair({"port": 8001})
    message = complaint(wrong, facts(taken={("127.0.0.1", 8001): "Address already in use"}))
    assert "large.port: 127.0.0.1:8001 is not available (Address already in use)" in message
    assert "large and small have the same port 8001" in complaint(pair({"port": 8001}, {"port": 8001}), facts())
    assert "large and small have the same served name 'm'" in complaint(pair({"name": "m"}, {"name": "m"}), facts())


def test_a_model_is_served_under_a_name_that_is_no_method() -> None:
    methods = ("specreason", "bild", "large")
    assert check_pair(pair(), facts(), methods) == ()
    with pytest.raises(ConfigurationError, match=r"large.name: 'bild' is the name of a method: leave `name` out"):
        check_pair(pair({"name": "bild"}), facts(), methods)
    for name in ("large", "small", "auto"):
        assert f"small.name: '{name}' is a reserved name" in complaint(pair(small={"name": name}), facts())
    same = pair({"model": SMALL})
    assert f"large and small have the same served name '{SMALL}': set a different `name` for each" in complaint(
        same, facts()
    )


def test_a_card_may_be_allotted_up_to_nine_tenths_and_more_causes_a_warning() -> None:
    (shared,) = warnings(pair({"memory": 0.65}, {"memory": 0.25, "gpus": [0]}), facts())
    assert "share GPU 0" in shared
    (full, _) = warnings(pair({"memory": 0.87}, {"memory": 0.1, "gpus": [0]}), facts())
    assert full.startswith(
        "GPU 0 has less than a tenth of its memory left (large.memory 0.87 + small.memory 0.1 = 0.97)"
    )
    assert warnings(pair({"memory": 0.95}), facts())
    assert warnings(pair(), facts()) == ()


def test_models_that_share_a_card_cause_a_warning_about_the_cost() -> None:
    (warning,) = warnings(pair({"gpus": [0, 1], "memory": 0.5}, {"memory": 0.2}), facts())
    assert warning.startswith("large and small share GPU 1: while both work, each slows the other")
    assert warnings(pair({"gpus": []}, {"gpus": []}), facts()) == ()


def test_a_card_smaller_than_in_the_file_is_refused_with_its_name() -> None:
    known = facts(cards=cards_of(22.5, 79.6, name="NVIDIA L4"))
    message = complaint(pair(), known)
    assert "card: the file says 79 GiB, and GPU 0 has less (NVIDIA L4, 22.5 GiB): write `card = 22`" in message
    assert "GPU 1" not in message


def test_larger_and_different_cards_cause_a_warning() -> None:
    known = facts(cards=cards_of(140.4, 79.6, name="NVIDIA H200"))
    (larger,) = warnings(pair(), known)
    assert larger.startswith("GPU 0 is larger than `card = 79` (NVIDIA H200, 140.4 GiB)")
    mixed = facts(cards=(Card(79.6, "NVIDIA H100"), Card(80.0, "NVIDIA A100"), Card(80.0, "NVIDIA A100")))
    (warning,) = warnings(pair({"gpus": [0, 1]}, {"gpus": [2]}), mixed)
    assert "large: its cards differ (NVIDIA H100, 79.6 GiB; NVIDIA A100, 80.0 GiB)" in warning


def drafting(large: ModelFiles, small: ModelFiles, **more: Any) -> tuple[Pair, MachineFacts]:
    speculation = {"method": "draft_model", **more}
    return pair({"speculation": speculation}), facts(files={(LARGE, None): large, (SMALL, None): small})


def test_embeddings_of_other_sizes_cannot_draft() -> None:
    qwq, distilled = "Qwen/QwQ-32B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
    wrong = pair({"model": qwq, "speculation": "draft_model", "gpus": [0, 2]}, {"model": distilled})
    message = complaint(wrong, facts())
    assert f"{distilled} cannot draft for {qwq}: their embeddings have 152064 and 151936 rows" in message
    assert "Set heterogeneous = true" in message
    mended = {"method": "draft_model", "heterogeneous": True}
    assert check_pair(pair({"model": qwq, "speculation": mended, "gpus": [0, 2]}, {"model": distilled}), facts()) == ()


def test_the_same_size_is_not_the_same_vocabulary() -> None:
    config = CONFIGS[SMALL]
    same = drafting(ModelFiles(config, WORDS), ModelFiles(config, dict(WORDS)))
    assert check_pair(*same) == ()
    message = complaint(*drafting(ModelFiles(config, WORDS), ModelFiles(config, {"a": 0, "c": 1, "b": 2})))
    assert "2 of its 3 tokens have another id there, or none" in message
    unknown = drafting(ModelFiles(config, WORDS), ModelFiles(config, None))
    assert check_pair(*unknown) == ()
    assert check_pair(*drafting(ModelFiles(config, WORDS), ModelFiles(config, {"z": 0}), heterogeneous=True)) == ()


def test_a_smaller_model_is_needed_to_draft() -> None:
    small = {"url": "http://there:1"}
    nobody = Pair.model_validate({"large": {"model": LARGE, "speculation": "draft_model"}, "small": small})
    assert "the pair has no smaller model that could draft: set" in complaint(nobody, facts())
    itself = pair({"speculation": {"method": "draft_model", "model": LARGE}})
    assert "cannot draft for itself" in complaint(itself, facts())
    assert "small.speculation: the pair has no smaller model" in complaint(
        pair(small={"speculation": "draft_model"}), facts()
    )


def test_a_folder_without_a_model_and_a_context_too_long_are_refused() -> None:
    wrong = pair({"model": "/nowhere"})
    gone = facts(files={("/nowhere", None): ModelFiles(missing="/nowhere"), (SMALL, None): ModelFiles(CONFIGS[SMALL])})
    assert "large.model: no model at /nowhere" in complaint(wrong, gone)
    assert "the model takes 40960 tokens, not 65536: lower it" in complaint(pair(small={"context": 65536}), facts())
    stretched: dict[str, Any] = {"context": 65536, "flags": {"hf-overrides": {"rope_scaling": {}}}}
    assert check_pair(pair(small=stretched), facts()) == ()
    odd = {(LARGE, None): ModelFiles(CONFIGS[LARGE]), (SMALL, None): ModelFiles(decoder(96, 2, 3, 1, 96, 100))}
    wrong = pair(small={"gpus": [1, 2]})
    assert "3 attention heads cannot be divided among 2 cards" in complaint(wrong, facts(files=odd))


def test_on_a_cpu_the_keys_and_values_need_room() -> None:
    cpu: dict[str, Any] = {"gpus": [], "flags": {"kv-cache-memory-bytes": 2**28}, "context": 1024}
    assert "kv-cache-memory-bytes is 268435456: raise it, or lower small.context" in complaint(
        pair(small={**cpu, "context": 8192}), facts()
    )
    assert check_pair(pair(small=cpu), facts()) == ()


def test_all_errors_are_reported_at_once() -> None:
    message = complaint(
        pair({"speculation": "suffix", "port": 1}, {"gpus": [0]}, card=24), facts(taken={("127.0.0.1", 1): "taken"})
    )
    assert message.count("\n- ") == 4
