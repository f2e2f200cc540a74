"""
Chat templates of the families that people run, each as what stands around its turns; and a server
that has one.

Written for these tests from what is publicly known of the formats. System turns are shortened: only
their place counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import orjson

from stepspec.orchestrator.endpoints.chat_template import Fields
from stepspec.orchestrator.markers import (
    BRACKETS,
    CHANNEL,
    HARMONY,
    RECIPIENT,
    SEED,
    THINK,
    ThinkingMarkers,
)

from ...stand_in import IM_END, FakeVllm
from ...vocabularies import real_tokenizer
from .real_vocabularies import RealVllm

EMPTY = "<think>\n\n</think>\n\n"


@dataclass(frozen=True)
class Family:
    """
    How one family renders a conversation, and what is expected of that.

    Every turn stands between its two texts; an assistant's has *block* before it, or only the last
    one has. After the *prompt* the model *writes* the first words by itself. *markers* are None for
    a model that does not think.
    """

    name: str
    user: tuple[str, str]
    assistant: tuple[str, str]
    prompt: str
    markers: ThinkingMarkers | None
    opened: str = ""
    answer: str = ""  # after the judge's question
    head: str = ""
    block: str = ""
    last_only: bool = False
    writes: str = ""
    by: str = "template"

    @property
    def thinks(self) -> bool:
        return self.markers is not None

    @property
    def turn(self) -> str:
        """What stands between a reply and the next question."""
        return self.assistant[1] + self.user[0]

    @property
    def before(self) -> str:
        """What stands between a question and the model's first words."""
        return self.user[1] + self.prompt

    def render(self, messages: Fields, generate: bool) -> str:
        text = self.head
        for place, message in enumerate(messages):
            content = message["content"]
            if message["role"] == "assistant":
                shown = self.block if not self.last_only or place == len(messages) - 1 else ""
                text += (
                    self.assistant[0]
                    + shown
                    + content.rpartition("</think>")[2]
                    + self.assistant[1]
                )
            else:
                text += self.user[0] + content + self.user[1]
        return text + (self.prompt if generate else "")


def chatml(name: str, prompt: str, markers: ThinkingMarkers | None, **fields: Any) -> Family:
    """A family with the turns of ChatML; *prompt* is what follows the assistant's head."""
    turns = ("<|im_start|>user\n", "<|im_end|>\n"), ("<|im_start|>assistant\n", "<|im_end|>\n")
    skipped = fields.pop("skipped", prompt if markers is None else EMPTY)
    answer = f"<|im_end|>\n<|im_start|>assistant\n{skipped}"
    return Family(
        name, *turns, f"<|im_start|>assistant\n{prompt}", markers, answer=answer, **fields
    )


def deepseek(
    name: str, prompt: str, markers: ThinkingMarkers | None, *, skipped: str, **fields: Any
) -> Family:
    """A family with DeepSeek's turns, whose marks are written with full-width bars."""
    turns = (
        ("<\uff5cUser\uff5c>", ""),
        (
            "<\uff5cAssistant\uff5c>",
            "<\uff5cend\u2581of\u2581sentence\uff5c>",
        ),
    )
    answer = f"<\uff5cAssistant\uff5c>{skipped}"
    begin = "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
    return Family(
        name,
        *turns,
        f"<\uff5cAssistant\uff5c>{prompt}",
        markers,
        answer=answer,
        head=begin,
        **fields,
    )


def glm(
    name: str, prompt: str, markers: ThinkingMarkers | None, ending: str = "", **fields: Any
) -> Family:
    turns = ("<|user|>\n", ending), ("<|assistant|>", "")
    answer = f"{ending}<|assistant|>\n<think></think>\n"
    block = "\n<think></think>\n"
    return Family(
        name,
        *turns,
        f"<|assistant|>{prompt}",
        markers,
        answer=answer,
        head="[gMASK]<sop>",
        block=block,
        **fields,
    )


def gemma(
    name: str, prompt: str, markers: ThinkingMarkers | None, *, skipped: str, **fields: Any
) -> Family:
    turns = ("<|turn>user\n", "<turn|>\n"), ("<|turn>model\n", "<turn|>\n")
    answer = f"<turn|>\n<|turn>model\n{skipped}"
    return Family(name, *turns, f"<|turn>model\n{prompt}", markers, answer=answer, **fields)


FAMILIES = (
    # The template leaves the opening to the model, and shows an empty block before the last reply.
    chatml("qwen3", "", THINK, opened="<think>\n", block=EMPTY, last_only=True),
    chatml("qwen3 with thinking off", EMPTY, None, block=EMPTY, last_only=True),
    # The template opens the block.
    chatml("qwen3-thinking-2507", "<think>\n", THINK, block=EMPTY, last_only=True),
    chatml("qwq", "<think>\n", THINK),
    deepseek("deepseek-r1-distill", "<think>\n", THINK, skipped=EMPTY),
    deepseek("deepseek-v3.1", "<think>", THINK, skipped="</think>", block="</think>"),
    deepseek(
        "deepseek-v3.1 with thinking off", "</think>", None, skipped="</think>", block="</think>"
    ),
    # A line break stands before the block, and none in it.
    glm("glm-4.6", "", THINK, opened="\n<think>"),
    glm(
        "glm-4.6 with thinking off", "\n<think></think>", None, ending="/nothink"
    ),  # codespell:ignore
    # The template shows nothing: the model opens the block.
    deepseek(
        "deepseek-r1-distill before the template opened the block",
        "",
        THINK,
        skipped=EMPTY,
        opened="<think>\n",
        writes="<think>\nOkay",
        by="effect",
    ),
    chatml(
        "smollm3",
        "",
        THINK,
        head="<|im_start|>system\nReasoning Mode: /think<|im_end|>\n",
        opened="<think>\n",
        writes="<think>\nOkay",
        by="effect",
    ),
    chatml(
        "smollm3 with thinking off",
        "<think>\n\n</think>\n",
        None,
        head="<|im_start|>system\n/no_think<|im_end|>\n",
    ),
    chatml(
        "lfm2.5",
        "",
        THINK,
        head="<|startoftext|>",
        opened="<think>\n",
        writes="<think>\nThe",
        by="effect",
    ),
    Family(
        "phi-4-reasoning",
        ("<|im_start|>user<|im_sep|>", "<|im_end|>"),
        ("<|im_start|>assistant<|im_sep|>", "<|im_end|>"),
        "<|im_start|>assistant<|im_sep|>",
        THINK,
        head="<|im_start|>system<|im_sep|>Think.<|im_end|>",
        opened="<think>",
        answer=f"<|im_end|><|im_start|>assistant<|im_sep|>{EMPTY}",
        writes="<think>User",
        by="effect",
    ),
    Family(
        "magistral",
        ("[INST]", "[/INST]"),
        ("", "</s>"),
        "",
        BRACKETS,
        head="<s>[SYSTEM_PROMPT]First draft your thinking process.[/SYSTEM_PROMPT]",
        opened="[THINK]",
        answer="[/INST][THINK][/THINK]",
        writes="[THINK]Okay",
        by="effect",
    ),
    Family(
        "seed-oss",
        ("<seed:bos>user\n", "<seed:eos>"),
        ("<seed:bos>assistant\n", "<seed:eos>"),
        "<seed:bos>assistant\n",
        SEED,
        opened="<seed:think>",
        answer="<seed:eos><seed:bos>assistant\n<seed:think>\n</seed:think>\n",
        writes="<seed:think>Got it",
        by="effect",
    ),
    gemma(
        "gemma-4",
        "",
        CHANNEL,
        head="<bos><|turn>system\n<|think|><turn|>\n",
        skipped="<|channel>thought\n<channel|>",
        opened="<|channel>thought\n",
        writes="<|channel>thought\nThe",
        by="effect",
    ),
    gemma(
        "gemma-4 with thinking off",
        "<|channel>thought\n<channel|>",
        None,
        head="<bos>",
        skipped="<|channel>thought\n<channel|>",
    ),
    # The thinking and the answer are messages of their own; the template shows where the answer's
    # begins.
    Family(
        "gpt-oss",
        ("<|start|>user<|message|>", "<|end|>"),
        ("<|start|>assistant", "<|end|>"),
        "<|start|>assistant",
        HARMONY,
        head="<|start|>system<|message|>Reasoning: medium<|end|>",
        opened="<|channel|>analysis<|message|>",
        answer="<|end|><|start|>assistant<|channel|>final<|message|>",
        block="<|channel|>final<|message|>",
    ),
    # A message names its recipient, which is a word and no mark.
    Family(
        "muse-glimmer",
        ("<|start|>user<|message|>", "<|eot|>"),
        ("<|start|>assistant", "<|eot|>"),
        "<|start|>assistant",
        RECIPIENT,
        head="<|begin_of_text|>",
        opened=" to=self<|message|>",
        answer="<|eot|><|start|>assistant to=user<|message|>",
        block=" to=user<|message|>",
    ),
    # No thinking at all.
    Family(
        "llama-3",
        ("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
        ("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        None,
        head="<|begin_of_text|>",
        answer="<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        writes="17 + 25",
        by="effect",
    ),
    Family(
        "gemma-3",
        ("<start_of_turn>user\n", "<end_of_turn>\n"),
        ("<start_of_turn>model\n", "<end_of_turn>\n"),
        "<start_of_turn>model\n",
        None,
        head="<bos>",
        answer="<end_of_turn>\n<start_of_turn>model\n",
        writes="17 + 25",
        by="effect",
    ),
)

BY_NAME = {family.name: family for family in FAMILIES}

SPECIAL = (
    *(
        "<think>",
        "</think>",
        "[THINK]",
        "[/THINK]",
        "<seed:think>",
        "</seed:think>",
        "<|channel>",
        "<channel|>",
    ),
    *("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|im_start|>", IM_END),
    *("<|eom|>", "<|eot|>"),
)


@dataclass
class FamilyServer(FakeVllm):
    """
    Serves a model of a *family*: its template, its marks as tokens, and the *script* behind what it
    writes first.
    """

    family: Family = FAMILIES[0]
    special: tuple[str, ...] = SPECIAL

    def render(
        self, messages: list[dict[str, Any]], generate: bool, tools: Sequence[dict[str, Any]] = ()
    ) -> str:
        return self.family.render(messages, generate)

    def continuation(self, prompt: str) -> list[bytes]:
        """
        Go on with what a whole reply would be, where *prompt* leaves it: the opening, the thinking,
        the answer.

        A model that does not think ends its turn after what would have been the thinking.
        """
        family = self.family
        thinking, _, answer = "".join(map(str, self.script)).partition("</think>")
        opening = closing = ""
        if family.markers is None:
            answer = ""
        else:
            opening = family.opened
            closing = family.markers.closing + family.markers.handover
        written = prompt.partition(family.before)[2]
        full = opening + thinking + closing + answer
        if written.startswith(family.opened) and not full.startswith(written):
            raise AssertionError(
                f"{family.name} was given {written!r}, where it would have written {full!r}"
            )
        rest = full[len(written) :]
        return [piece.encode() for piece in pieces(rest)]

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        reply = super().answer(body)
        if not {"prompt_logprobs", "allowed_token_ids"} & set(body):
            reply["choices"][0]["text"] = self.family.writes + " ..."
        return reply


@dataclass
class RealFamily(RealVllm):
    """
    Serves a model of a *family* with a real vocabulary; shows tools, and calls with the reasoning
    before them.
    """

    family: Family = FAMILIES[0]

    @classmethod
    def of(cls, vocabulary: str, name: str) -> Self:
        """The model of the family *name* with the *vocabulary* of a family that is served."""
        tokenizer = real_tokenizer(vocabulary)
        return cls(tokenizer=tokenizer, family=BY_NAME[name], end=tokenizer.get_vocab_size())

    def render(
        self, messages: list[dict[str, Any]], generate: bool, tools: Sequence[dict[str, Any]] = ()
    ) -> str:
        shown = [{"role": "user", "content": orjson.dumps(list(tools)).decode()}] if tools else []
        return self.family.render([*shown, *map(_spelt, messages)], generate)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        reply = super().answer(body)
        reply["choices"][0]["text"] = self.family.writes
        return reply


def _spelt(message: dict[str, Any]) -> dict[str, Any]:
    """
    Put into the content what a template shows of a turn's calls; vLLM reads their arguments before
    it renders.
    """
    calls = [
        f"{call['function']['name']}"
        f" {orjson.dumps(orjson.loads(call['function']['arguments'])).decode()}"
        for call in message.get("tool_calls") or ()
    ]
    return message | {"content": "\n".join([message["content"], *calls])}


def pieces(text: str) -> list[str]:
    """Divide *text* into the tokens that a `FamilyServer` writes: marks, words and line breaks."""
    made: list[str] = []
    while text:
        piece = next((special for special in SPECIAL if text.startswith(special)), "")
        if not piece:
            piece = text[0]
            while len(piece) < len(text) and text[len(piece)].isalpha() and piece[-1] not in "\n.":
                piece += text[len(piece)]
        made.append(piece)
        text = text[len(piece) :]
    return made
