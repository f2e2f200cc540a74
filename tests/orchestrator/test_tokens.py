"""Tokens as columns are the tokens that they were made of."""

from __future__ import annotations

import pickle
import tracemalloc

import orjson
import pytest

from stepspec.orchestrator.backends.vllm import replies
from stepspec.orchestrator.chain import Step, Token
from stepspec.orchestrator.errors import MalformedReply
from stepspec.orchestrator.events import Committed, Drafted
from stepspec.orchestrator.http.prompts import EncodedPrompt
from stepspec.orchestrator.tokens import Tokens
from stepspec.orchestrator.trace import Moment, dump, parse

from .backends.test_vllm_protocol import CALL

RIVALS = (Token("So", -0.1, 1), Token(" É", -2.0, 2))
CASES: list[tuple[Token, ...]] = [
    (),
    (Token("So"),),
    (Token("So", id=7), Token("", id=200_000), Token("é 🙂", id=2**31 - 1)),
    (Token("So", -0.5, 1, 7, RIVALS), Token(" it", -9999.0, 0, -1), Token(".", 0.0, 2, 9, RIVALS)),
]


@pytest.mark.parametrize("tokens", CASES)
def test_columns_are_read_as_the_tokens_that_they_were_made_of(tokens: tuple[Token, ...]) -> None:
    made = Tokens.of(tokens)
    assert list(made) == list(tokens)
    equal: object = tokens
    assert made == equal
    assert hash(made) == hash(tokens)
    assert [made[-1 - place] for place in range(len(tokens))] == list(reversed(tokens))
    assert made[1:] == tokens[1:]
    assert made.ids == [token.id for token in tokens]
    assert pickle.loads(pickle.dumps(made)) == made
    longer: object = (*tokens, Token("more"))
    assert made != longer


@pytest.mark.parametrize("tokens", CASES)
def test_a_trace_has_the_tokens_of_columns(tokens: tuple[Token, ...]) -> None:
    text = "".join([token.text for token in tokens])
    step = Step(text, "small", "delimiter", Tokens.of(tokens, text), "words")
    moment = Moment(0.5, Committed(3, step))
    assert parse(dump(moment)) == moment
    plain = Moment(0.5, Drafted(3, Step(text, "small", "delimiter", tokens, "words")))
    assert dump(plain) == dump(Moment(0.5, Drafted(3, step)))


def test_a_token_without_log_probabilities_takes_at_most_sixty_bytes() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        steps: list[Step] = []
        for number in range(100):
            text = f" {number:04}" * 20
            tokens = Tokens.of([Token(f" {number:04}", id=number)] * 20, text)
            steps.append(Step(text, "large", "delimiter", tokens))
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held / sum(len(step.tokens) for step in steps) <= 60


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("ids", [[0], [5, 17, 200_000], list(range(500)), list(range(50_000))])
def test_the_ids_of_a_conversation_stay_json(ids: list[int], close: bool) -> None:
    reply: dict[str, object] = {"count": len(ids), "max_model_len": 500, "tokens": ids}
    body = orjson.dumps({**reply, "token_strs": None}, option=0 if close else orjson.OPT_INDENT_2)
    prompt, room = replies.tokenized(CALL, body)
    assert (prompt, room) == (EncodedPrompt.of(ids), 500)
    assert prompt.ids == ids
    assert prompt.last(3) == ids[-3:]


@pytest.mark.parametrize("padding", [0, 100_000])
@pytest.mark.parametrize("value", ["a", -1, 1.5, None, True, False, [7], {"a": 1}])
def test_ids_that_are_none_are_malformed(value: object, padding: int) -> None:
    body = orjson.dumps({"max_model_len": 500, "text": "x" * padding, "tokens": [value]})
    with pytest.raises(MalformedReply):
        replies.tokenized(CALL, body)
