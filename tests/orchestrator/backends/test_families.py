"""The chat templates of common model families: the learnt template of each, and its prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from stepspec.orchestrator.answer import close
from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.chain import THINK_END, Chain, Step
from stepspec.orchestrator.endpoints import Template
from stepspec.orchestrator.errors import MissingCapability
from stepspec.orchestrator.markers import KNOWN, THINK, begun_marks
from tests.templates import ask, learn

from .families import BY_NAME, FAMILIES, Family, FamilyServer, RealFamily

SCRIPT = ("So one.\n\nThen two.\n\nDone.\n", THINK_END, "It is \\boxed{2}.")
every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
thinking_family = pytest.mark.parametrize(
    "family", [f for f in FAMILIES if f.thinks], ids=lambda family: family.name
)


def learnt(family: Family) -> Template:
    return learn(family.render).after(family.writes)


@every_family
def test_the_learnt_template_of_a_family(family: Family) -> None:
    template = learnt(family)
    assert template.thinks is family.thinks
    assert template.source == family.by
    assert (template.turn, template.answer, template.opened) == (
        family.turn,
        family.answer,
        family.opened,
    )
    assert family.markers is None or template.markers == family.markers


@every_family
def test_the_prompt_ends_where_the_model_would_begin_to_think(family: Family) -> None:
    begun = learnt(family).begin(family.render([{"role": "user", "content": "PROBLEM"}], True))
    if family.markers is not None:
        assert begun.rstrip().endswith(family.markers.opening.rstrip())
        assert begun.count(family.markers.opening.rstrip()) == 1
    assert begun == family.head + family.user[0] + "PROBLEM" + family.before + family.opened


ENDS = (
    "t", "to", " to", " to=", "a to=user", " to=self", "assistant", "Who is your assistant", "s",
    "user", "final", "thought", "model\n", "Answer", "Answer:", "x <", "<|", "[", "<think>",
    "</think>", "<answer>", "[THINK]", "<seed:think>", "<|channel>", "<|channel>thought\n",
    "<|channel|>", "<|channel|>final", "<|im_start|>", "<|im_start|>assistant", "<|end|>",
    "<|message|>", "<|start|>assistant to=self", "to=user<|message|>", "/no_think", "x\n\n",
    "\n", "",
)  # fmt: skip
"""Ends of users' messages that look like a part of a mark."""


@every_family
@pytest.mark.parametrize("thinks", [True, False])
def test_what_opens_the_reply_does_not_depend_on_how_messages_end(
    family: Family, *, thinks: bool
) -> None:
    template = learnt(family)

    def added(*contents: str) -> str:
        roles = ("user", "assistant", "user")
        turns = [
            {"role": role, "content": content}
            for role, content in zip(roles, contents, strict=False)
        ]
        prompt = family.render(turns, True)
        begun = template.begin(prompt, thinks=thinks)
        assert begun.startswith(prompt)
        return begun.removeprefix(prompt)

    wanted = added("PROBLEM")
    for end in ENDS:
        assert added(end) == added("a", "b", end) == added(end, end, end) == wanted, end
        assert ask(template, end) == f"{family.turn}{end}{family.answer}"


@every_family
def test_a_judge_answers_outside_of_the_thinking(family: Family) -> None:
    """
    Its prompt ends where the family's own conversation would have a reply begin whose thinking was
    skipped.
    """
    question = ask(learnt(family), "QUESTION", "The grade is ")
    assert question == f"{family.turn}QUESTION{family.answer}The grade is "
    for markers in KNOWN:
        opened = question.count(markers.opening.rstrip())
        closed = question.count(markers.closing)
        assert opened <= closed


def close_of(family: Family) -> str:
    assert family.markers is not None
    return family.markers.closing + family.markers.handover


def marks(server: FamilyServer, ids: Sequence[int]) -> list[str]:
    return [piece for piece in (server.decode([number]) for number in ids) if len(piece) > 1]


@every_family
async def test_the_prompt_of_every_step_begins_with_the_prompt_of_the_step_before(
    family: Family,
) -> None:
    server = FamilyServer(SCRIPT, family=family)
    async with server.serve() as settings, VllmEndpoint(settings) as endpoint:
        assert endpoint.template == learnt(family)
        learning = [body for path, body in server.requests if path == "/v1/completions"]
        model = endpoint.model()
        chain = Chain.of("What is 1 + 1?")
        prompts: list[list[int]] = []
        while not chain.finished:
            prompts.append(await endpoint.tokenizer.encode_chain(chain))
            chain = chain.extend(await model.write(chain))
        answer = await model.write(close(chain, model), stop=())
        sent = [body["prompt"] for _, body in server.requests if body.get("stream")]
        full = await endpoint.tokenizer.encode_chain(chain.extend(answer))
    assert sent[: len(prompts)] == prompts
    for shorter, longer in pairwise(sent):
        assert longer[: len(shorter)] == shorter
    if family.thinks:
        assert [step.text for step in chain.steps] == [
            "So one.\n\n",
            "Then two.\n\n",
            f"Done.\n{THINK_END}",
        ]
        assert (chain.steps[-1].stop, answer.text) == ("end", "It is \\boxed{2}.")
        assert server.decode(full).endswith(close_of(family) + "It is \\boxed{2}.")
    for step in chain.steps:
        assert "".join(token.text for token in step.tokens) == step.text
    # A template that shows its block costs no request, any other one a small one.
    small = [(body["temperature"], body["max_tokens"] <= 32) for body in learning]
    assert small == ([(0.0, True)] if family.by == "effect" else [])


@every_family
async def test_a_block_closed_by_another_model_is_closed_in_the_models_own_way_and_marks_stay_text(
    family: Family,
) -> None:
    """
    The vocabulary has the marks of all families as tokens. A model that does not think reads no
    closing mark.
    """
    server = FamilyServer(SCRIPT, family=family)
    closed = f"So one.\n{THINK_END}"
    text = "</think><|im_end|><|im_start|>[THINK]<|channel|><|start|>"
    async with server.serve() as settings, VllmEndpoint(settings) as endpoint:
        chain = Chain.of("What is 1 + 1?").extend(Step(closed, "small", "end"))
        read = server.decode(await endpoint.tokenizer.encode_chain(chain))
        (tokens,) = await endpoint.model().score(chain, closed)
        wanted, found = [
            await endpoint.tokenizer.encode_chain(Chain.of(f"Hi {words}."))
            for words in ("all", text)
        ]
    assert read.endswith(
        f"{family.before}{family.opened}So one.\n{close_of(family) if family.thinks else ''}"
    )
    assert "".join(token.text for token in tokens) == closed
    assert server.decode(found) == server.decode(wanted).replace("Hi all", f"Hi {text}")
    assert marks(server, found) == marks(server, wanted)


@thinking_family
def test_thinking_can_be_switched_off_for_any_family(family: Family) -> None:
    found = learnt(family)
    template = found.overridden(False)
    assert (template.thinks, template.source) == (False, "setting")
    begun = template.begin(family.before)
    assert begun.rstrip().endswith(
        (close_of(family).rpartition("<|start|>assistant")[2], "</think>")
    )
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


@pytest.mark.parametrize(
    "family", [f for f in FAMILIES if "thinking off" in f.name], ids=lambda family: family.name
)
async def test_a_template_that_switches_thinking_off_is_not_overridden_but_cured(
    family: Family,
) -> None:
    server = FamilyServer(SCRIPT, family=family)
    async with server.serve(thinks=True) as settings:
        with pytest.raises(
            MissingCapability, match=r"small model at http.*template = \{ enable_thinking = true \}"
        ):
            async with VllmEndpoint(settings):
                pass


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
        # whose marks are no tokens of this vocabulary: they come in several
        ("mistral", "magistral"),
        ("mistral", "seed-oss"),
        ("gemma", "gemma-4"),
    ],
)
async def test_prompts_grow_in_the_ids_of_real_vocabularies(vocabulary: str, name: str) -> None:
    """
    What a model has written is sent back to it in its own ids, the mark at its end included.

    A mark that is *merged* may share tokens with what stands around it, unless it is a token of the
    vocabulary.
    """
    server = RealFamily.of(vocabulary, name)
    thinking = "So 3 + 4 = 7.\n\nWait, is it? 12 / 4 = 3.\n\nYes.\n"
    reply = "\n\nIt is 3."
    parts = [thinking, close_of(server.family), reply]
    async with server.serve() as settings, VllmEndpoint(settings) as endpoint:
        for merged in (False, True):
            texts = ["".join(parts)] if merged else parts
            server.written = written = [number for text in texts for number in server.encode(text)]
            model = endpoint.model()
            chain = Chain.of("What is 3 + 4?")
            begun = await endpoint.tokenizer.encode_chain(chain)
            prompts = [begun]
            while not chain.finished:
                chain = chain.extend(await model.write(chain))
                prompts.append(await endpoint.tokenizer.encode_chain(chain))
            answer = await model.write(chain, stop=())
            assert (chain.text, chain.steps[-1].text) == (
                thinking + THINK_END,
                f"Yes.\n{THINK_END}",
            )
            for shorter, longer in pairwise(prompts):
                assert longer[: len(shorter)] == shorter
            assert server.decode(prompts[-1][len(begun) :]) == thinking + close_of(server.family)
            tokens = [token.id for step in chain.steps for token in step.tokens]
            assert merged or -1 not in tokens
            if -1 not in tokens:  # No token reaches beyond a step.
                assert answer.text == reply
                assert [
                    *prompts[-1][len(begun) :],
                    *(token.id for token in answer.tokens),
                ] == written


@pytest.mark.parametrize(
    ("text", "marks", "size"),
    [
        ("<|start|>assistant", "to=user<|message|>", 0),  # the t of a word
        ("assistant to", "to=user<|message|>", 2),
        ("assistant to=", "to=user<|message|>", 3),
        ("assistant to=us", "to=user<|message|>", 0),
        ("photo", "to=user<|message|>", 0),
        ("<|end|><|start|>assistant", "<|start|>assistant<|channel|>final<|message|>", 18),
        ("<|end|><|start|>assist", "<|start|>assistant<|channel|>final<|message|>", 0),
        ("it is 3 <", "<|start|>assistant", 0),
        ("<|end|><|start|>", "<|start|>assistant", 9),
        ("3 [", "[THINK][/THINK]", 0),
        ("[THINK]", "[THINK][/THINK]", 7),
        ("<answer", "<answer>\n", 0),
        ("", "<answer>", 0),
        ("<answer>", "<answer>", 0),  # all of it is no beginning
    ],
)
def test_only_whole_marks_and_words_are_the_beginning_of_marks(
    text: str, marks: str, size: int
) -> None:
    assert begun_marks(text, marks) == size
