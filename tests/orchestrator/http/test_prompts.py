"""Prompts in parts are the JSON of their ids, wherever they were joined and cut."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest

from stepspec.orchestrator.http.prompts import (
    MAX_PARTS,
    EncodedPrompt,
    write_body,
)

IDS = [7, 0, 200_000, 13, 13, 4]


def test_a_prompt_that_grows_is_that_of_all_its_ids() -> None:
    chance = random.Random(1)
    prompt = EncodedPrompt()
    ids: list[int] = []
    for _ in range(3 * MAX_PARTS):
        added = [chance.randrange(200_000) for _ in range(chance.randrange(4))]
        longer = prompt.plus(added)
        assert (prompt.count, prompt.ids) == (len(ids), ids), "the shorter one has not changed"
        prompt = longer
        ids = ids + added
        assert len(prompt.parts) <= MAX_PARTS
    assert len(prompt) == len(ids)
    assert prompt.ids == ids
    json = b"".join(prompt.parts)
    assert json == orjson.dumps(ids)[1:-1]
    assert prompt.size == len(json)
    assert prompt.last(9) == ids[-9:]
    assert prompt.last(len(ids) + 5) == ids


@pytest.mark.parametrize("count", range(len(IDS) + 1))
def test_the_beginning_of_a_prompt_ends_in_a_part_or_between_two(count: int) -> None:
    size = len(orjson.dumps(IDS[:count])) - 2
    for cut in range(len(IDS) + 1):
        prompt = EncodedPrompt.of(IDS[:cut]).plus(IDS[cut:])
        beginning = prompt.beginning(count, size)
        assert (len(beginning), beginning.ids) == (count, IDS[:count])
        assert beginning.plus([5]).ids == [*IDS[:count], 5]
        assert prompt.ids == IDS


def test_a_body_has_its_prompts_as_ids() -> None:
    one = EncodedPrompt.of(IDS[:2]).plus(IDS[2:])
    bodies: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"model": "m", "prompt": one, "stop": ["\n"]}, {"prompt": IDS}),
        ({"prompt": [one, EncodedPrompt.of([1])], "n": 1}, {"prompt": [IDS, [1]]}),
        ({"token_ids": EncodedPrompt(), "n": None}, {"token_ids": []}),
        ({"prompt": IDS, "tokens": []}, {}),
        ({"a": one, "text": '["\u00e9\\]', "b": one}, {"a": IDS, "b": IDS}),
    ]
    for body, plain in bodies:
        written = write_body(body)
        assert orjson.loads(written) == body | plain
        assert written == orjson.dumps(body | plain), "the order of fields has changed"


def test_a_body_with_half_of_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(TypeError, match="surrogate"):
        write_body({"prompt": EncodedPrompt.of(IDS), "stop": ["\ud83d"]})
