"""What counts as going round in circles, and what does not."""

import pytest

from stepspec.orchestrator import Chain, Step
from stepspec.orchestrator.chain import Stop
from stepspec.orchestrator.repetition import obstacle, stuck


def chain(*texts: str) -> Chain:
    return Chain((), tuple(Step(f"{text}\n\n", "small") for text in texts))


def step(text: str, stop: Stop = "delimiter") -> Step:
    return Step(f"{text}\n\n", "small", stop)


@pytest.mark.parametrize(
    ("said", "draft", "why"),
    [
        ((), "A", ""),
        ((), "", "empty"),
        ((), " \t", "empty"),
        (("A",), "B", ""),
        (("A",), "A", "repetition"),
        (("A",), "a", ""),
        (("A b",), "  A \n b ", "repetition"),
        (("A", "B"), "A", ""),
        (("A", "B", "A"), "B", "repetition"),
        (("A", "B", "A"), "C", ""),
        (("B", "A", "B", "C"), "A", ""),
        (("A", "B", "C", "A", "B"), "C", ""),  # Circles of three are left to the judge and the budget.
        (("A", "A", "A"), "B", ""),
        (("A", "B"), "", "empty"),
    ],
)
def test_a_draft_is_refused_where_it_is_empty_or_goes_round_for_the_second_time(
    said: tuple[str, ...], draft: str, why: str
) -> None:
    assert obstacle(chain(*said), step(draft)) == why


@pytest.mark.parametrize(
    ("said", "repair", "circling"),
    [
        ((), "A", False),
        ((), "", True),
        (("A",), "A", False),
        (("A", "A"), "A", True),
        (("A", "A"), "B", False),
        (("B", "A", "A"), "A", True),
        (("A", "B", "A"), "B", False),
        (("A", "B", "A", "B"), "A", False),
        (("A", "B", "A", "B", "A"), "B", True),
        (("A", "B", "B", "B", "A"), "B", False),
        (("C",) * 9 + ("A", "B", "A", "B", "A"), "B", True),
    ],
)
def test_a_repair_is_stuck_where_it_is_empty_or_goes_round_for_the_third_time(
    said: tuple[str, ...], repair: str, circling: bool
) -> None:
    assert stuck(chain(*said), step(repair)) is circling


@pytest.mark.parametrize("stop", ["length", "until", "end"])
def test_only_whole_steps_count(stop: Stop) -> None:
    assert obstacle(chain("A"), step("A", stop)) == ""
    assert obstacle(chain("A"), step("", stop)) == ""
    assert not stuck(chain("A", "A"), step("A", stop))
    assert not stuck(chain("A", "A"), step("", stop))


@pytest.mark.parametrize("stop", ["length", "until"])
def test_a_delimiter_alone_ends_a_paragraph_that_was_cut_and_is_not_empty(stop: Stop) -> None:
    opened = chain("A").extend(Step("It is", "small", stop))
    assert obstacle(opened, step("")) == ""
    assert not stuck(opened, step(""))
    ended = opened.extend(step(""))
    assert obstacle(ended, step("")) == "empty"
    assert stuck(ended, step(""))
