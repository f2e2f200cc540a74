"""
Ids and text of real model families: text that is written, cut, read again and sent again stays the
same.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from unicodedata import normalize

import orjson
import pytest
from tokenizers import Tokenizer

from stepspec.orchestrator.backends.vllm import replies
from stepspec.orchestrator.backends.vllm.tokenizer import ModelTokenizer
from stepspec.orchestrator.chain import Chain, Step, Token
from stepspec.orchestrator.http.http_errors import Call
from stepspec.orchestrator.step_builder import StepBounds, StepBuilder
from stepspec.orchestrator.step_ends import StepEnds
from stepspec.prompts import load
from tests.vocabularies import FAMILIES, real_tokenizer, token_texts

from ..conftest import Meet
from .real_vocabularies import HALF, RealVllm

PROBLEM = Chain.of("What is 1 + 1?")
CALL = Call("small", "http://host", "write")
BYTE_LEVEL = tuple(family for family in FAMILIES if family != "gemma")
# ruff: noqa: RUF001  # letters of other alphabets that look like these are what has to be tried
TEXTS = (
    "So 3 + 4 = 7.\n\nWait, naïve Größe: 你好世界, 日本語 🙂👍🏽 한국어.\n\n",
    "```python\nfor i in range(10):\n\n\tprint(i)\n```\n\n\\frac{12}{7} \\boxed{42}\n\n\n\n",
    (
        "Ελληνικά русский العربية 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ☃ हिन्दी ไทย 1,000,000.50 … ”quoted“ — e\u0301"
        " 👩\u200d👩\u200d👧\n\n"
    ),
)
every_family = pytest.mark.parametrize("family", FAMILIES)
byte_level = pytest.mark.parametrize("family", BYTE_LEVEL)


@cache
def ordinary(family: str) -> tuple[Sequence[int], Sequence[int]]:
    """The ids that mean text, and those of them that are parts of characters."""
    known = [(number, text) for number, text in token_texts(family).items() if text]
    return [number for number, _ in known], [number for number, text in known if HALF in text]


def sequences(family: str, count: int, *, length: int = 12, seed: int = 0) -> list[list[int]]:
    """Random tokens, a third of them parts of characters where the vocabulary is byte-level."""
    rng = random.Random(seed)
    complete, parts = ordinary(family)
    pools = (complete, complete, parts if family in BYTE_LEVEL else complete)
    return [[rng.choice(pools[rng.randrange(3)]) for _ in range(length)] for _ in range(count)]


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=False)


def grown(server: RealVllm, ids: Sequence[int], limit: int) -> Step:
    """
    The step that comes of *ids*, as vLLM sends them after a prompt, and of the end of the turn.
    """
    server.written = ids
    body = {
        "prompt": server.encode("So: "),
        "max_tokens": limit,
        "stop": [],
        "logprobs": 0,
        "return_token_ids": True,
    }
    bounds = StepBounds(StepEnds((), blocks=False), limit)
    growing = StepBuilder("small", "v", Chain.of("?"), bounds)
    for choice in server.pieces(body):
        piece = replies.parse_chunk(CALL, orjson.dumps({"choices": [choice]}), 0)
        for token in piece.tokens:
            if stop := growing.add(token):
                return growing.end(stop)
        if piece.ended:
            return growing.end(piece.ended)
    raise AssertionError("the stream did not end")


async def encoded(model_tokenizer: ModelTokenizer, step: Step) -> list[int]:
    """The ids that stand for *step* in a prompt."""
    return (await model_tokenizer.encode_chain(PROBLEM.extend(step)))[
        len(await model_tokenizer.encode_chain(PROBLEM)) :
    ]


async def cut_twice(
    model_tokenizer: ModelTokenizer, tokenizer: Tokenizer, step: Step, keep: int
) -> tuple[str, str]:
    """
    The text of *step* cut after *keep* characters, as its author's prompt and as the opening of a
    step.
    """
    cut = step.cut(keep)
    prompt = await encoded(model_tokenizer, cut)
    begun = [token.id for token in await model_tokenizer.tokens_of_text(cut.text)]
    return text_of(tokenizer, prompt), text_of(tokenizer, begun)


@every_family
@pytest.mark.parametrize(
    ("prompt", "choices"),
    [
        ("specreason.grade", "0123456789"),
        ("check", ("Yes", "No")),
        ("lookahead-reasoning.same", ("Yes", "No")),
    ],
)
def test_a_judges_choices_are_single_tokens_behind_its_opening(
    family: str, prompt: str, choices: Sequence[str]
) -> None:
    tokenizer = real_tokenizer(family)
    opening = load(prompt).opening
    for choice in choices:
        assert len(ids_of(tokenizer, choice)) == 1
        assert ids_of(tokenizer, opening + choice) == ids_of(tokenizer, opening) + ids_of(
            tokenizer, choice
        )


@every_family
def test_random_tokens_are_written_as_their_text(family: str) -> None:
    tokenizer = real_tokenizer(family)
    parts = ordinary(family)[1]
    server = RealVllm(tokenizer=tokenizer, end=tokenizer.get_vocab_size())
    for number, ids in enumerate(sequences(family, 300, seed=1)):
        server.chunk = (1, 2, 5)[number % 3]
        step = grown(server, ids, limit=len(ids) - number % 2)
        written = [token.id for token in step.tokens]
        assert written == ids[: len(written)]
        assert (
            "".join(token.text for token in step.tokens) == step.text == text_of(tokenizer, written)
        )
        # of a character that did not come
        assert set(ids[len(written) : len(ids) - number % 2]) <= set(parts)
        for place, token in enumerate(step.tokens, 1):
            if token.text:
                assert "".join(one.text for one in step.tokens[:place]) == text_of(
                    tokenizer, written[:place]
                )


@byte_level
async def test_prompts_grow_by_the_ids_that_were_written(family: str, meet: Meet) -> None:
    tokenizer = real_tokenizer(family)
    server = RealVllm(tokenizer=tokenizer, chunk=2)
    async with meet(server) as met:
        for ids in sequences(family, 20, length=24, seed=7):
            server.requests.clear()
            server.written = ids
            chain = PROBLEM
            step = Step("", "small")
            # parts of characters alone lead nowhere
            while not chain.finished and (chain is PROBLEM or step.text):
                step = await met.model.write(chain, stop=(), limit=6)
                chain = chain.extend(step)
            prompts = [
                body["prompt"] for path, body in server.requests if path == "/v1/completions"
            ]
            start = len(prompts[0])
            for prompt in prompts:
                assert prompt[start:] == ids[: len(prompt) - start]
                assert (
                    text_of(tokenizer, prompt[start:])
                    == chain.text[: len(text_of(tokenizer, prompt[start:]))]
                )


@every_family
async def test_a_step_that_is_cut_anywhere_keeps_its_text(family: str, meet: Meet) -> None:
    """A step of known texts, and of random tokens where the vocabulary is byte-level."""
    tokenizer = real_tokenizer(family)
    server = RealVllm(tokenizer=tokenizer, chunk=3)
    known = {text: ids_of(tokenizer, text) for text in TEXTS}
    drawn = sequences(family, 6, seed=11) if family in BYTE_LEVEL else []
    async with meet(server) as met:
        for text, ids in [*known.items(), *((None, ids) for ids in drawn)]:
            server.written = ids
            step = await met.model.write(PROBLEM, stop=(), limit=512 if text else len(ids))
            assert text is None or normalize("NFC", step.text) == normalize("NFC", text)
            for keep in range(1, len(step.text) + 1):
                for kept in await cut_twice(met.endpoint.tokenizer, tokenizer, step, keep):
                    assert normalize("NFC", kept) == normalize("NFC", step.text[:keep])


@every_family
async def test_the_text_after_a_replacement_character_does_not_repeat_the_prompt(
    family: str, meet: Meet
) -> None:
    tokenizer = real_tokenizer(family)
    server = RealVllm(tokenizer=tokenizer, written=ids_of(tokenizer, " so it is."))
    async with meet(server) as met:
        chain = PROBLEM.extend(Step(f"First.\n\nThen {HALF}{HALF}", "large"))
        assert (await met.model.write(chain)).text == " so it is."
    for path, body in server.requests:
        if path == "/v1/completions":
            prompt = body["prompt"] if isinstance(body["prompt"][0], int) else body["prompt"][0]
            assert text_of(tokenizer, prompt).endswith("First.\n\nThen ")


@byte_level
async def test_a_turn_that_ends_in_half_a_character_is_text_of_its_tokens(
    family: str, meet: Meet
) -> None:
    tokenizer = real_tokenizer(family)
    part = ordinary(family)[1][0]
    server = RealVllm(tokenizer=tokenizer, written=[part, *ids_of(tokenizer, " so it is"), part])
    async with meet(server) as met:
        for server.chunk in (1, 2, 8):
            step = await met.model.write(PROBLEM)
            assert "".join(token.text for token in step.tokens) == step.text
            assert text_of(tokenizer, [token.id for token in step.tokens]) == step.text
            assert step.stop == "end"


@every_family
async def test_texts_score_as_their_tokens(family: str, meet: Meet) -> None:
    tokenizer = real_tokenizer(family)
    async with meet(RealVllm(tokenizer=tokenizer)) as met:
        for text in TEXTS:
            for tokens in await met.model.score(PROBLEM, text, text):
                assert [token.id for token in tokens] == ids_of(tokenizer, text)
                assert "".join(token.text for token in tokens) == text


def test_a_part_of_a_character_before_a_token_that_was_cut_is_encoded_with_it() -> None:
    step = Step(
        "a\ufffd so", "small", tokens=(Token("a", id=1), Token("", id=2), Token("\ufffd so", id=3))
    )
    assert [token.id for token in step.cut(2).tokens] == [1, 2, -1]
