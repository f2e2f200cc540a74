"""The bodies of requests to vLLM. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...endpoints.interfaces import Format, ServerFormat
from ...endpoints.settings import GREEDY, Sampling
from ...http.paths import Body
from ...http.prompts import EncodedPrompt

Variables: TypeAlias = Mapping[str, Any]
"""Variables of a chat template."""

Prompt: TypeAlias = Sequence[int] | EncodedPrompt
"""The token ids of a prompt, or their JSON."""

Prompts: TypeAlias = Prompt | Sequence[Prompt]
"""One prompt, or several in one request."""

MAX_STOPS = 4
"""Stop strings in a request: vLLM refuses more. `StepBuilder` matches the others."""

MAX_LOGPROBS = 20
"""Log-probabilities of a position that vLLM returns if it is started without --max-logprobs."""


@dataclass(frozen=True, slots=True)
class StreamForm:
    """How a stream of tokens ends, and what its events have."""

    limit: int
    """The most tokens."""
    stop: Sequence[str] = ()
    """Strings that end the stream. Only the first `MAX_STOPS` are sent."""
    stop_token: int = -1
    """A token that ends the stream. -1: none."""
    logprobs: bool = True
    """Whether tokens come with their spellings and log-probabilities. Without, no stop works."""


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
    form: StreamForm,
    format: Format | None,
) -> Body:
    """Ask for a stream of tokens in this *form*, whose text has this *format*."""
    body = completion_body(model, prompt, sampling, form.limit) | {
        "stream": True,
        "stream_options": {"include_usage": True},
        "stop": list(form.stop)[:MAX_STOPS],
        "include_stop_str_in_output": form.logprobs,
        "return_token_ids": True,
        "return_tokens_as_token_ids": False,
    }
    if form.stop_token >= 0:
        body["stop_token_ids"] = [form.stop_token]
    if form.logprobs:
        body["logprobs"] = sampling.logprobs
    if isinstance(format, ServerFormat):
        body["structured_outputs"] = format.outputs
    elif format == "json":
        body["structured_outputs"] = {"json_object": True}
    elif format is not None:
        body["structured_outputs"] = {"json": format}
    return body


def choice_body(
    model: str,
    prompt: Prompts,
    choices: Sequence[int],
    *,
    by_id: bool,
) -> Body:
    """
    Ask for one token out of the ids *choices*, for each prompt.

    *by_id* asks for the log-probabilities of all choices. Otherwise the request asks for those of
    the most probable tokens of the vocabulary, which every server supports.
    """
    body = completion_body(model, prompt, GREEDY, 1) | {
        "allowed_token_ids": choices,
        "return_tokens_as_token_ids": True,
        "logprobs": 1 if by_id else MAX_LOGPROBS,
    }
    if by_id:
        body["logprob_token_ids"] = choices
    return body


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
