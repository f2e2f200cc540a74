"""
The parameters of OpenAI's API and of vLLM's APIs that no method has, and their defaults. No I/O.

A client may send such a parameter with its default or with an empty value, without effect. The
parameters are those of the request classes of vLLM 0.32, which `tests` compare with this list.
"""

from __future__ import annotations

from collections.abc import Mapping

DEFAULTS: Mapping[str, object] = {
    **dict.fromkeys(
        (
            "allowed_token_ids",
            "audio",
            "bad_words",
            "cache_salt",
            "chat_template",
            "chat_template_kwargs",
            "context_management",
            "conversation",
            "documents",
            "ec_transfer_params",
            "functions",
            "kv_transfer_params",
            "logit_bias",
            "logits_processors",
            "logprob_token_ids",
            "media_io_kwargs",
            "mm_processor_kwargs",
            "moderation",
            "prediction",
            "previous_input_messages",
            "previous_response_id",
            "prompt",
            "prompt_logprobs",
            "repetition_detection",
            "request_id",
            "return_mm_kwargs",
            "session_id",
            "stop_token_ids",
            "structured_outputs",
            "suffix",
            "thinking_token_budget",
            "truncate_prompt_tokens",
            "truncation_side",
            "vllm_xargs",
        )
    ),
    "add_generation_prompt": True,
    "add_special_tokens": False,
    "background": False,
    "best_of": 1,
    "continue_final_message": False,
    "echo": False,
    "enable_response_messages": False,
    "frequency_penalty": 0,
    "function_call": "none",
    "include_reasoning": True,
    "include_stop_str_in_output": False,
    "length_penalty": 1,
    "logprobs": False,
    "mm_payload": "tensors",
    "presence_penalty": 0,
    "priority": 0,
    "return_prompt_text": False,
    "return_token_ids": False,
    "return_token_offsets": False,
    "return_tokens_as_token_ids": False,
    "routed_experts_prompt_start": 0,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "store": False,
    "stream_interval": 1,
    "top_logprobs": 0,
    "truncation": "disabled",
    "use_beam_search": False,
    "watermarking": False,
}
"""The default of each parameter; None for a parameter that is left out by default."""


def has_no_effect(name: str, value: object) -> bool:
    """Return whether *value* is empty or the default of *name*, a parameter that no method has."""
    if name not in DEFAULTS:
        return False
    return value in ([], {}, "") or value == DEFAULTS[name]
