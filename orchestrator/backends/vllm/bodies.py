"""The paths of vLLM's HTTP protocol and the bodies of its requests. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ...endpoints.interfaces import Format, ServerFormat
from ...endpoints.settings import GREEDY, Sampling
from .prompts import EncodedPrompt

Body: TypeAlias = dict[str, Any]


Prompt: TypeAlias = Sequence[int] | EncodedPrompt


Prompts: TypeAlias = Prompt | Sequence[Prompt]  # one prompt, or several in one request


MODELS, COMPLETIONS, POOLING = "/v1/models", "/v1/completions", "/pooling"


TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"


METRICS, VERSION, HEALTH = "/metrics", "/version", "/health"


DECISIONS = "/v1/decisions"


# vLLM's own route, which takes token ids and all sampling parameters
GENERATE = "/inference/v1/generate"


# the paths whose requests take a ``priority``
PRIORITISED = frozenset({COMPLETIONS, POOLING, GENERATE})


# those that wait for no place at the server
WITHOUT_ENGINE = frozenset({HEALTH, METRICS, TOKENIZE, DETOKENIZE})


# vLLM refuses more stop strings (VLLM_MAX_STOP_STRINGS); `StepBuilder` matches the others.
MAX_STOPS = 4


MAX_LOGPROBS = 20  # the most that vLLM returns unless started with --max-logprobs


def tokenize_body(model: str, text: str, *, special_tokens: bool = False) -> Body:
    """Encode *text*, with the tokenizer's own *special_tokens* around it or without."""
    return {"model": model, "prompt": text, "add_special_tokens": special_tokens}


def tokenize_messages_body(
    model: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    generate: bool = True,
    template: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> Body:
    """
    Render *messages* and *tools* with the chat template and encode the text; *generate* adds the
    generation prompt.

    *template* holds variables of the chat template (``chat_template_kwargs``); None sends none.
    """
    body: Body = {"model": model, "messages": messages, "add_generation_prompt": generate}
    if tools:
        body["tools"] = tools
    return body | {"chat_template_kwargs": template} if template else body


def detokenize_body(model: str, ids: Sequence[int]) -> Body:
    """Decode token *ids*, special tokens included."""
    return {"model": model, "tokens": ids}


def completion_body(model: str, prompt: Prompts, sampling: Sampling, limit: int) -> Body:
    """
    Ask for *limit* tokens, with every sampling parameter set, so that no default of the server
    applies.
    """
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": limit,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": sampling.repetition_penalty,
        "skip_special_tokens": False,
    }


def stream_body(
    model: str,
    prompt: Prompt,
    sampling: Sampling,
    format: Format | None = None,
    *,
    limit: int,
    stop: Iterable[str],
    stop_token: int = -1,
    spelt: bool = True,
) -> Body:
    """
    Ask for a stream of at most *limit* tokens in this *format*.

    It ends after a *stop* string, or with the *stop_token* if that is not -1. Only *spelt* tokens
    come with their spellings and log-probabilities; without them it has to have no stops.
    """
    body = completion_body(model, prompt, sampling, limit) | {
        "stream": True,
        "stream_options": {"include_usage": True},
        "stop": list(stop)[:MAX_STOPS],
        "include_stop_str_in_output": spelt,
        "return_token_ids": True,
        "return_tokens_as_token_ids": False,
    }
    if stop_token >= 0:
        body["stop_token_ids"] = [stop_token]
    if spelt:
        body["logprobs"] = sampling.logprobs
    if isinstance(format, ServerFormat):
        body["structured_outputs"] = format.outputs
    elif format is not None:
        body["structured_outputs"] = {"json_object": True} if format == "json" else {"json": format}
    return body


def choice_body(model: str, prompt: Prompts, choices: Sequence[int], *, by_id: bool) -> Body:
    """
    Ask for one token out of the ids *choices*, with the log-probabilities of all of them; for each
    prompt.

    Without *by_id*, ask for the most probable tokens of the vocabulary instead, which every server
    supports.
    """
    logprobs: Body = (
        {"logprobs": 1, "logprob_token_ids": choices} if by_id else {"logprobs": MAX_LOGPROBS}
    )
    allowed = {"allowed_token_ids": choices, "return_tokens_as_token_ids": True}
    return completion_body(model, prompt, GREEDY, 1) | allowed | logprobs


def scoring_body(model: str, prompt: Prompt, top: int) -> Body:
    """
    Ask for the log-probability and rank of every token of *prompt*, and the *top* likeliest of its
    position.
    """
    return completion_body(model, prompt, GREEDY, 1) | {"prompt_logprobs": top}


def suffix_scoring_body(model: str, prompt: Prompt, top: int) -> Body:
    """
    Ask `GENERATE` for what `scoring_body` asks for, but without the part of *prompt* that the
    prefix cache holds.

    Without ``detokenize: false`` this request kills vLLM: it would look up texts for rows that it
    has never filled.
    """
    sampling = {
        "prompt_logprobs": top,
        "skip_reading_prefix_cache": False,
        "detokenize": False,
        "skip_special_tokens": False,
        "max_tokens": 1,
        "temperature": 0.0,
    }
    return {"model": model, "token_ids": prompt, "sampling_params": sampling}


def pooling_body(model: str, prompt: Prompt, *, logits: bool) -> Body:
    """
    Have a reward model rate *prompt*, with *logits* or the values of the server's own activation.
    """
    return {
        "model": model,
        "input": prompt,
        "use_activation": not logits,
        "encoding_format": "float",
    }
