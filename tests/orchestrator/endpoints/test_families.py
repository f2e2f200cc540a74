"""The chat templates of common model families: the learnt template of each, and its prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from stepspec.orchestrator.answer import close
from stepspec.orchestrator.chain import THINK_END, Chain, Step
from stepspec.orchestrator.endpoints import Template, VllmEndpoint, learn
from stepspec.orchestrator.errors import MissingCapability
from stepspec.orchestrator.markers import KNOWN, THINK
from tests.vocabularies import real_tokenizer

from .families import BY_NAME, FAMILIES, Family, FamilyServer
from .real import RealVllm

SCRIPT = ("So one.\n\nThen two.\n\nDone.\n", THINK_END, "It is \\boxed{2}.")
HIDDEN = [family for family in FAMILIES if family.by == "effect"]
every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
thinking_family = pytest.mark.parametrize("family", [f for f in FAMILIES if f.thinks], ids=lambda family: family.name)


def learnt(family: Family) -> Template:
    return learn(family.render).after(family.writes)


@every_family
def test_the_learnt_template_of_a_family(family: Family) -> None:
    template = learnt(family)
    assert template.thinks is family.thinks
    assert template.source == family.by
    assert (template.turn, template.answer, template.opened) == (family.turn, family.answer, family.opened)
    assert family.markers is None or template.markers == family.markers


@every_family
def test_the_prompt_ends_where_the_model_would_begin_to_think(family: Family) -> None:
    begun = learnt(family).begin(family.render([{"role": "user", "content": "PROBLEM"}], True))
    if family.markers is not None:
        assert begun.rstrip().endswith(family.markers.opening.rstrip())
        assert begun.count(family.markers.opening.rstrip()) == 1
    assert begun == family.head + family.user[0] + "PROBLEM" + family.before + family.opened


@every_family
def test_a_judge_answers_outside_of_the_thinking(family: Family) -> None:
    """Its prompt ends where the family's own conversation would have a reply begin whose thinking was skipped."""
    question = learnt(family).ask("QUESTION", "The grade is ")
    assert question == f"{family.turn}QUESTION{family.answer}The grade is "
    for markers in KNOWN:
        opened, closed = question.count(markers.opening.rstrip()), question.count(markers.closing)
        assert opened <= closed


@every_family
async def test_the_prompt_of_every_step_begins_with_the_prompt_of_the_step_before(family: Family) -> None:
    server = FamilyServer(SCRIPT, family=family)
    async with server.serve() as settings, VllmEndpoint(settings) as endpoint:
        model, chain = endpoint.model(), Chain.of("What is 1 + 1?")
        prompts: list[list[int]] = []
        while not chain.finished:
            prompts.append(await endpoint.encoder.chain(chain))
            chain = chain.extend(await model.write(chain))
        answer = await model.write(close(chain, model), stop=())
        sent = [body["prompt"] for _, body in server.requests if body.get("stream")]
        assert sent[: len(prompts)] == prompts
        for shorter, longer in pairwise(sent):
            assert longer[: len(shorter)] == shorter
        full = await endpoint.encoder.chain(chain.extend(answer))
    if family.thinks:
        assert [step.text for step in chain.steps] == ["So one.\n\n", "Then two.\n\n", f"Done.\n{THINK_END}"]
        assert (chain.steps[-1].stop, answer.text) == ("end", "It is \\boxed{2}.")
        assert server.decode(full).endswith(close_of(family) + "It is \\boxed{2}.")
    for step in chain.steps:
        assert "".join(token.text for token in step.tokens) == step.text


def close_of(family: Family) -> str:
    assert family.markers is not None
    return family.markers.closing + family.markers.handover


@thinking_family
async def test_a_block_that_another_model_closed_is_closed_in_the_models_own_way(family: Family) -> None:
    server = FamilyServer(SCRIPT, family=family)
    chain = Chain.of("What is 1 + 1?").extend(Step(f"So one.\n{THINK_END}", "small", "end"))
    async with server.serve() as settings, VllmEndpoint(settings) as endpoint:
        text = server.decode(await endpoint.encoder.chain(chain))
        (tokens,) = await endpoint.model().score(chain, f"So one.\n{THINK_END}")
    assert text.endswith(f"{family.opened}So one.\n{close_of(family)}")
    assert "".join(token.text for token in tokens) == f"So one.\n{THINK_END}"


async def test_a_model_that_does_not_think_does_not_read_where_others_stopped_thinking() -> None:
    server = FamilyServer(SCRIPT, family=BY_NAME["llama-3"])
    chain = Chain.of("What is 1 + 1?").extend(Step(f"So one.\n{THINK_END}", "large", "end"))
    async with server.serve() as settings, VllmEndpoint(settings) as endpoint:
        assert server.decode(await endpoint.encoder.chain(chain)).endswith("<|end_header_id|>\n\nSo one.\n")


@pytest.mark.parametrize("family", HIDDEN, ids=lambda family: family.name)
async def test_a_template_that_shows_nothing_costs_one_small_request(family: Family) -> None:
    server = FamilyServer(SCRIPT, family=family)
    async with server.serve() as settings, VllmEndpoint(settings) as endpoint:
        assert endpoint.template == learnt(family)
    (body,) = [body for path, body in server.requests if path == "/v1/completions"]
    assert (body["temperature"], body["max_tokens"] <= 32) == (0.0, True)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.by == "template"], ids=lambda family: family.name)
async def test_a_template_that_shows_its_block_costs_no_request(family: Family) -> None:
    server = FamilyServer(SCRIPT, family=family)
    async with server.serve() as settings, VllmEndpoint(settings):
        assert "/v1/completions" not in [path for path, _ in server.requests]


@thinking_family
def test_thinking_can_be_switched_off_for_any_family(family: Family) -> None:
    found = learnt(family)
    template = found.overridden(False)
    assert (template.thinks, template.source) == (False, "setting")
    begun = template.begin(family.before)
    assert begun.rstrip().endswith((close_of(family).removeprefix("<|end|><|start|>assistant"), "</think>"))
    assert template.answer == found.answer
    assert found.overridden(True) == found.overridden(None) == found


HIDING: tuple[tuple[Callable[[Sequence[str]], str], str], ...] = (
    (lambda contents: contents[-1], "leaves out a turn"),
    ("".join, "nothing between two turns"),
    (lambda contents: "|".join(each[::-1] for each in contents), "leaves out a turn"),
)


@pytest.mark.parametrize(("shown", "complaint"), HIDING)
def test_a_template_that_hides_its_turns_cannot_be_learnt(
    shown: Callable[[Sequence[str]], str], complaint: str
) -> None:
    with pytest.raises(MissingCapability, match=complaint):
        learn(lambda messages, generate: shown([message["content"] for message in messages]))


def test_a_block_that_nothing_shows_can_be_demanded() -> None:
    template = learnt(BY_NAME["llama-3"]).overridden(True)
    assert (template.thinks, template.source, template.opened) == (True, "setting", "<think>\n")
    assert template.markers == THINK


@pytest.mark.parametrize("family", [f for f in FAMILIES if "thinking off" in f.name], ids=lambda family: family.name)
async def test_a_template_that_switches_thinking_off_is_not_overridden_but_cured(family: Family) -> None:
    server = FamilyServer(SCRIPT, family=family)
    async with server.serve(thinks=True) as settings:
        with pytest.raises(MissingCapability, match=r"small model at http.*template = \{ enable_thinking = true \}"):
            async with VllmEndpoint(settings):
                pass


@dataclass
class RealFamily(RealVllm):
    """Serves a model of a *family* with the tokenizer of one that is served."""

    family: Family = FAMILIES[0]

    def render(self, messages: list[dict[str, Any]], generate: bool, tools: Sequence[dict[str, Any]] = ()) -> str:
        return self.family.render(messages, generate)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        reply = super().answer(body)
        reply["choices"][0]["text"] = self.family.writes
        return reply


@pytest.mark.parametrize(
    ("vocabulary", "name"),
    [
        ("miniature", "qwen3"),
        ("qwen", "qwen3"),
        ("qwen", "smollm3"),
        ("qwen", "glm-4.6"),
        ("deepseek", "deepseek-r1-distill"),
        ("deepseek", "deepseek-v3.1"),
        ("gpt-oss", "gpt-oss"),
        ("mistral", "magistral"),  # whose marks are no tokens of this vocabulary: they come in several
        ("mistral", "seed-oss"),
        ("gemma", "gemma-4"),
    ],
)
@pytest.mark.parametrize("merged", [False, True])
async def test_prompts_grow_in_the_ids_of_real_vocabularies(vocabulary: str, name: str, merged: bool) -> None:
    """
    What a model has written is sent back to it in its own ids, the mark at its end included.

    A mark that is *merged* may share tokens with what stands around it, unless it is a token of the vocabulary.
    """
    tokenizer, family = real_tokenizer(vocabulary), BY_NAME[name]
    thinking, reply = "So 3 + 4 = 7.\n\nWait, is it? 12 / 4 = 3.\n\nYes.\n", "\n\nIt is 3."
    parts = [thinking, close_of(family), reply]
    parts = ["".join(parts)] if merged else parts
    server = RealFamily(tokenizer=tokenizer, family=family, end=tokenizer.get_vocab_size())
    server.written = written = [number for part in parts for number in server.encode(part)]
    async with server.serve() as settings, VllmEndpoint(settings) as endpoint:
        model, chain = endpoint.model(), Chain.of("What is 3 + 4?")
        begun = await endpoint.encoder.chain(chain)
        prompts = [begun]
        while not chain.finished:
            chain = chain.extend(await model.write(chain))
            prompts.append(await endpoint.encoder.chain(chain))
        answer = await model.write(chain, stop=())
    assert (chain.text, chain.steps[-1].text) == (thinking + THINK_END, f"Yes.\n{THINK_END}")
    for shorter, longer in pairwise(prompts):
        assert longer[: len(shorter)] == shorter
    assert server.decode(prompts[-1][len(begun) :]) == thinking + close_of(family)
    tokens = [token.id for step in chain.steps for token in step.tokens]
    assert merged or -1 not in tokens
    if -1 not in tokens:  # No token reaches beyond a step.
        assert answer.text == reply
        assert [*prompts[-1][len(begun) :], *(token.id for token in answer.tokens)] == written
