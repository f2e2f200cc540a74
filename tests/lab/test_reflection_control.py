"""The control of reflection: the prompts for the model, and the counts."""

from __future__ import annotations

from itertools import islice

from lab.reflection_control import READINGS, DraftCase, Rate, ReadingVariant, cases, rates, table
from stepspec.evals.testbed.problems import advance, begin, generate, is_right
from stepspec.orchestrator import Chain, Step, Token
from stepspec.prompts import load

from ..fakes import ScriptedModel, counting, run, tokenise

PROBLEMS = list(islice(generate(3, "test"), 40))


def test_every_place_has_its_right_step_and_two_wrong_ones_after_right_ones() -> None:
    made = cases(PROBLEMS, 1)
    assert len(made) == 3 * len(PROBLEMS)
    by_text = {problem.text: problem for problem in PROBLEMS}
    for case in made:
        problem = by_text[case.chain.messages[0].content]
        state = begin(problem)
        for step in case.chain.steps:
            assert is_right(problem, state, step.text)
            state = advance(problem, state, step.text)
        assert is_right(problem, state, case.draft.text) == (case.kind == "right")
    assert {len(case.chain.steps) for case in made} >= {0, 1, 2, 3}
    assert cases(PROBLEMS, 1) == made != cases(PROBLEMS, 2)


def test_wrong_results_differ_from_the_right_step_in_numbers_only() -> None:
    def words(text: str) -> str:
        return "".join(char for char in text if not char.isdigit())

    made = cases(PROBLEMS, 1)
    for one, _, result in zip(made[0::3], made[1::3], made[2::3], strict=True):
        assert (one.kind, result.kind) == ("right", "wrong result")
        assert words(one.draft.text) == words(result.draft.text)


class Copying(ScriptedModel):
    """Likes whatever it has just read: a first copy only if it is right, a second one after no more than this text."""

    liked = load("reflective.neutral").text

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        first, bridge, second = spans
        return [
            self.tokens_of(first, "7" in first),
            self.tokens_of(bridge, True),
            self.tokens_of(second, "7" in first or bridge.startswith(self.liked)),
        ]

    def tokens_of(self, span: str, liked: bool) -> tuple[Token, ...]:
        own, other = (-0.1, -3.0) if liked else (-3.0, -0.1)
        return tuple(
            Token(text, own, id=0, top=(Token(text, own, id=0), Token("?", other, id=1))) for text in tokenise(span)
        )


def test_a_model_that_likes_copies_is_found_out_by_the_neutral_text() -> None:
    chain = Chain.of("6 and 1?")
    drafts = [
        DraftCase(chain, Step("It is 7.\n\n", "small"), "right"),
        DraftCase(chain, Step("It is 8.\n\n", "small"), "wrong result"),
        DraftCase(chain, Step("It is 9.\n\n", "small"), "wrong result"),
    ]
    found, _ = run(rates(Copying("large", counting("large", 2)), drafts))
    wrong = {rate.reading: rate.accepted for rate in found if rate.kind == "wrong result"}
    assert wrong == {
        "first reading only": 0,
        "blended with reflection": 0,
        "blended with neutral text": 0,
        "reflection alone": 0,
        "neutral text alone": 2,
    }
    assert all(rate.accepted == rate.n == 1 for rate in found if rate.kind == "right")


def test_rates_carry_their_interval_and_fill_a_table() -> None:
    drafts = [DraftCase(Chain.of("1?"), Step("It is 7.\n\n", "small"), "right")] * 10
    verdicts: list[None] = []
    large = Copying("large", counting("large", 2))
    found, _ = run(rates(large, drafts, readings=READINGS[:2], on_verdict=lambda: verdicts.append(None)))
    assert len(verdicts) == 20
    assert (found[0].share, found[0].high) == (1.0, 1.0)
    assert 0.7 < found[0].low < 0.75
    assert table([*found, Rate("other", "right", 10, 5, 0.5, 0.2, 0.8)]).row_count == 3


def test_every_reading_is_known_to_the_policy() -> None:
    assert [ReadingVariant("x").options, *(reading.options.get("prompt", "") for reading in READINGS)] == [
        {}, "", "reflect", "neutral", "reflect", "neutral",
    ]  # fmt: skip
