"""The stream of a nested pair by hand: the effect of each verdict, token by token, and open requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from stepspec.orchestrator import Accept, Chain, Model, Rival, Rollback, Step, Token, Verdict
from stepspec.orchestrator.chain import Role, Stop
from stepspec.orchestrator.nesting.model import InnerOptions, VerifiedStream

from ...fakes import ScriptedModel, run
from ..arms import PROBLEM


def step(*words: str, author: Role = "small", stop: Stop = "delimiter") -> Step:
    return Step("".join(words), author, stop, tuple(Token(word) for word in words), "words")


ONE, TWO, LAST = step("One", ".\n\n"), step("Two", ".\n\n"), step("Three", ".", stop="end")
OTHER = step("Other", ".\n\n", author="large")


@dataclass
class Ruled:
    """Drafts that stand after so many steps, and a verdict on those that are named; a second for each of the three."""

    drafts: tuple[Step, ...]
    verdicts: Mapping[str, Verdict] = field(default_factory=dict[str, Verdict])
    repaired: Step = OTHER
    log: list[str] = field(default_factory=list[str])

    @property
    def answerer(self) -> Model:
        return ScriptedModel("large", lambda previous: "")

    async def draft(self, chain: Chain) -> Step:
        await self._note(f"draft after {chain.text.split()}")
        return self.drafts[len(chain.steps)]

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        await asyncio.sleep(1)
        return self.verdicts.get(draft.text, Accept())

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        await self._note(f"repair after {chain.text.split()}")
        return self.repaired

    async def _note(self, line: str) -> None:
        self.log.append(line)
        await asyncio.sleep(1)


def stream(
    policy: Ruled,
    inner: InnerOptions = InnerOptions(),  # noqa: B008 -- frozen
    ahead: int = 0,
    spent: Callable[[Chain], bool] = lambda chain: False,
) -> tuple[VerifiedStream, list[tuple[int, str, Verdict]]]:
    verdicts: list[tuple[int, str, Verdict]] = []
    made = VerifiedStream(
        policy,
        PROBLEM,
        inner,
        ahead,
        spent,
        lambda place, draft, verdict: verdicts.append((place, draft.text, verdict)),
    )
    return made, verdicts


async def words(made: VerifiedStream, most: int = 99) -> list[str]:
    """Take so many tokens, or all there are and why no more come."""
    taken: list[str] = []
    while len(taken) < most:
        token = await made.take()
        taken.append(token.text if isinstance(token, Token) else f"({token})")
        if not isinstance(token, Token):
            break
    return taken


def test_accepted_text_arrives_token_by_token_followed_by_the_reason_of_its_end() -> None:
    async def main() -> None:
        made, verdicts = stream(Ruled((ONE, LAST)))
        made.place = 7
        assert made.exhausted
        assert await words(made, 1) == ["One"]
        assert (made.exhausted, made.ended, made.pieces) == (False, False, [ONE])
        assert await words(made, 1) == [".\n\n"]
        assert made.exhausted
        assert await words(made) == ["Three", ".", "(end)"]
        assert await words(made) == ["(end)"]
        assert (made.ended, made.pieces) == (True, [ONE, LAST])
        assert verdicts == [(7, ONE.text, Accept()), (7, LAST.text, Accept())]
        await made.close()

    assert run(main())[1] == 4.0


def test_the_accepted_rival_replaces_the_draft_and_the_next_draft_follows_it() -> None:
    policy = Ruled(
        (ONE, LAST), {ONE.text: Rollback(reason="grade", rivals=(Rival(ONE, 1.0, "beaten"), Rival(TWO, 9.0)))}
    )

    async def main() -> None:
        made, _ = stream(policy, ahead=1)
        assert await words(made) == ["Two", ".\n\n", "Three", ".", "(end)"]
        assert made.pieces == [TWO, LAST]
        await made.close()

    run(main())
    assert policy.log == ["draft after []", "draft after ['One.']", "draft after ['Two.']"]


@pytest.mark.parametrize(("keep", "kept"), [(0, []), (2, ["On"]), (3, ["One"])])
def test_the_kept_part_precedes_its_repair_which_has_the_reason(keep: int, kept: list[str]) -> None:
    policy = Ruled((ONE, LAST, LAST), {ONE.text: Rollback(keep, "doubt")})

    async def main() -> None:
        made, _ = stream(policy, ahead=1)
        assert await words(made, len(kept) + 2) == [*kept, "Other", ".\n\n"]
        assert [(piece.author, piece.stop, piece.note) for piece in made.pieces] == [
            *[("small", "length", "") for _ in kept],
            ("large", "delimiter", "doubt"),
        ]
        assert await words(made) == ["Three", ".", "(end)"]
        await made.close()

    run(main())
    assert policy.log[2] == f"repair after {kept}"


@pytest.mark.parametrize(("keep", "repaired"), [(3, False), (0, True)])
def test_there_is_no_repair_if_the_kept_part_spends_the_budget(keep: int, repaired: bool) -> None:
    policy = Ruled((ONE,), {ONE.text: Rollback(keep, "doubt")})

    async def main() -> None:
        made, _ = stream(policy, spent=lambda chain: bool(chain.steps) or policy.log != [])
        assert await words(made, 1) == (["Other"] if repaired else ["One"])
        await made.close()

    run(main())
    assert ("repair after []" in policy.log) is repaired


@pytest.mark.parametrize(("stop", "why"), [("delimiter", "(length)"), ("end", "(end)")])
def test_a_repair_without_a_token_ends_the_stream(stop: Stop, why: str) -> None:
    async def main() -> None:
        made, _ = stream(Ruled((ONE,), {ONE.text: Rollback()}, repaired=Step("", "large", stop)))
        assert await words(made) == [why]
        assert made.ended
        await made.close()

    run(main())


@pytest.mark.parametrize(
    ("opening", "limit", "taken"),
    [
        ("", 9, []),
        ("O", 9, ["One"]),
        ("One", 9, ["One"]),
        ("One.", 9, ["One", ".\n\n"]),
        ("One.\n\nTwo", 9, ["One", ".\n\n", "Two"]),
        ("One.\n\nTwo", 2, ["One", ".\n\n"]),
        ("One.\n\nTwo", 0, []),
        ("One.\n\nTwo.\n\nThree and more", 9, ["One", ".\n\n", "Two", ".\n\n", "Three", "."]),
    ],
)
def test_an_opening_takes_the_tokens_that_cover_it_and_no_more_than_it_may(
    opening: str, limit: int, taken: list[str]
) -> None:
    async def main() -> None:
        made, _ = stream(Ruled((ONE, TWO, LAST)), InnerOptions(opening=opening))
        assert [token.text for token in await made.opened(limit)] == taken
        await made.close()

    run(main())


@pytest.mark.parametrize(("ahead", "drafts"), [(0, 1), (1, 2), (2, 3)])
def test_a_course_that_waits_works_on_as_far_as_it_may(ahead: int, drafts: int) -> None:
    policy = Ruled((ONE, TWO, LAST))

    async def main() -> None:
        made, _ = stream(policy, ahead=ahead)
        await words(made, 2)
        made.wait_for(PROBLEM.extend(ONE))
        assert (made.expected, made.pieces) == (PROBLEM.extend(ONE), [])
        await asyncio.sleep(10)
        await made.close()
        assert made.expected is None

    run(main())
    assert len(policy.log) == drafts


def test_after_a_repair_it_begins_again_as_soon_as_it_waits() -> None:
    policy = Ruled((ONE, LAST), {ONE.text: Rollback(0, "doubt")})

    async def main() -> None:
        made, _ = stream(policy, ahead=1)
        await words(made, 2)
        made.wait_for(PROBLEM.extend(OTHER))
        await asyncio.sleep(10)
        assert policy.log[-1] == "draft after ['Other.']"
        assert await words(made) == ["Three", ".", "(end)"]
        await made.close()

    run(main())
