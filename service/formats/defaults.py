"""
The parameters of OpenAI's API and of vLLM's APIs that no method has, and their defaults. No I/O.

A client may send such a parameter with its default or with an empty value, without effect. The
parameters are those of the request classes of vLLM 0.32, which `tests` compare with this list.
"""

from __future__ import annotations

from collections.abc import Mapping

DEFAULTS: Mapping[str, object] = {
    "add_generation_prompt": True,
    "add_special_tokens": False,
    "allowed_token_ids": None,
    "audio": None,
    "bad_words": None,
    "best_of": 1,
    "cache_salt": None,
    "chat_template": None,
    "chat_template_kwargs": None,
    "continue_final_message": False,
    "conversation": None,
    "documents": None,
    "ec_transfer_params": None,
    "echo": False,
    "enable_response_messages": False,
    "include_reasoning": True,
    "include_stop_str_in_output": False,
    "kv_transfer_params": None,
    "length_penalty": 1,
    "logit_bias": None,
    "logprob_token_ids": None,
    "media_io_kwargs": None,
    "mm_payload": "tensors",
    "mm_processor_kwargs": None,
    "prediction": None,
    "previous_input_messages": None,
    "previous_response_id": None,
    "priority": 0,
    "prompt": None,
    "prompt_logprobs": None,
    "repetition_detection": None,
    "request_id": None,
    "return_mm_kwargs": None,
    "return_prompt_text": False,
    "return_token_ids": False,
    "return_token_offsets": False,
    "return_tokens_as_token_ids": False,
    "routed_experts_prompt_start": 0,
    "session_id": None,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "stop_token_ids": None,
    "stream_interval": 1,
    "structured_outputs": None,
    "suffix": None,
    "thinking_token_budget": None,
    "truncate_prompt_tokens": None,
    "truncation_side": None,
    "use_beam_search": False,
    "vllm_xargs": None,
    "watermarking": False,
}
"""The default of each parameter; None for a parameter that is left out by default."""


def has_no_effect(name: str, value: object) -> bool:
    """Return whether *value* is empty or the default of *name*, a parameter that no method has."""
    if name not in DEFAULTS:
        return False
    return value in ([], {}, "") or value == DEFAULTS[name]
