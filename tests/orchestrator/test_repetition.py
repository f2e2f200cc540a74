"""Text that counts as a loop, and text that does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Chain, Step
from stepspec.orchestrator.chain import Stop
from stepspec.orchestrator.repetition import RUN, WINDOW, obstacle, stuck

from .arms import BOUNDED


def chain(*texts: str) -> Chain:
    return Chain((), tuple(Step(f"{text}\n\n", "small") for text in texts))


def step(text: str, stop: Stop = "delimiter") -> Step:
    return Step(f"{text}\n\n", "small", stop)


@pytest.mark.parametrize(
    ("paragraphs", "draft", "why"),
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
def test_an_empty_draft_and_one_that_repeats_a_second_time_are_refused(
    paragraphs: tuple[str, ...], draft: str, why: str
) -> None:
    assert obstacle(chain(*paragraphs), step(draft)) == why


@pytest.mark.parametrize(
    ("paragraphs", "repair", "circling"),
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
        (("A",) * 5, "A", True),
    ],
)
def test_an_empty_repair_and_one_that_repeats_a_third_time_are_stuck(
    paragraphs: tuple[str, ...], repair: str, circling: bool
) -> None:
    assert stuck(chain(*paragraphs), step(repair)) is circling


@pytest.mark.parametrize("stop", ["length", "until", "end"])
def test_incomplete_steps_are_never_repetitions(stop: Stop) -> None:
    assert obstacle(chain("A"), step("A", stop)) == ""
    assert obstacle(chain("A"), step("", stop)) == ""
    assert not stuck(chain("A", "A"), step("A", stop))
    assert not stuck(chain("A", "A"), step("", stop))


@pytest.mark.parametrize(("stop", "why"), [("length", "empty"), ("until", ""), ("end", ""), ("delimiter", "")])
def test_nothing_at_all_was_refused_by_its_limit_alone(stop: Stop, why: str) -> None:
    """A delimiter ends the paragraph that was cut before it."""
    cut = chain("A").extend(Step("B", "small", "length"))
    assert obstacle(cut, Step("", "small", stop)) == why


def words(count: int, letter: str = "a") -> list[str]:
    """Words without digits, none of them twice."""
    return [f"{letter}{chr(97 + place // 26)}{chr(97 + place % 26)}" for place in range(count)]


@pytest.mark.parametrize(("length", "why"), [(n, "" if n < 13 else "repetition") for n in range(5, 19)])
def test_a_paragraph_echoes_another_that_has_nine_in_ten_of_its_four_words_in_a_row(length: int, why: str) -> None:
    """Of n words, n - 3 times four follow each other, and a last word that differs is part of one of these."""
    paragraphs = [
        " ".join([*words(length - 1, letter), last])
        for last in ("alpha", "beta", "gamma")
        for letter in ("x", "y", "z")
    ]
    assert obstacle(chain(*paragraphs[:-1]), step(paragraphs[-1])) == why


@pytest.mark.parametrize(("count", "why"), [(3, ""), (4, "repetition")])
def test_paragraphs_next_to_each_other_may_echo(count: int, why: str) -> None:
    text = " ".join(words(13))
    paragraphs = [text, text.upper(), text.title(), text.capitalize()]
    assert obstacle(chain(*paragraphs[:count]), step(text.swapcase()[:20] + text[20:])) == why


@pytest.mark.parametrize(("ago", "why"), [(WINDOW, "repetition"), (WINDOW + 1, "")])
def test_steps_before_the_window_are_ignored(ago: int, why: str) -> None:
    circle = dict(enumerate(" ".join(words(9, letter)) for letter in ("z", "y", "x")))  # the last paragraph first
    by_place = {place + at: text for at in (0, 10, ago) for place, text in circle.items()}
    backwards = [by_place.get(place, " ".join(words(9, f"filler{chr(97 + place)}"))) for place in range(ago + 3)]
    assert obstacle(chain(*backwards[:0:-1]), step(backwards[0])) == why


def test_a_paragraph_in_two_pieces_repeats_one_in_one_piece() -> None:
    circle = [" ".join(words(9, letter)) for letter in ("x", "y", "z")]
    cut = chain(*circle, *circle, *circle[:2]).extend(Step(circle[2][:14], "small", "length"))
    assert obstacle(cut, step(circle[2][14:])) == "repetition"


@pytest.mark.parametrize(
    ("period", "length", "why"), [(2, 127, ""), (2, 128, "repetition"), (24, 128, "repetition"), (25, 128, "")]
)
def test_a_spin_has_128_words_of_which_at_most_24_are_distinct(period: int, length: int, why: str) -> None:
    assert obstacle(chain(), step(" ".join(words(period)[place % period] for place in range(length)))) == why


@pytest.mark.parametrize("stop", ["length", "until"])
def test_a_delimiter_alone_ends_a_paragraph_that_was_cut_and_is_not_empty(stop: Stop) -> None:
    opened = chain("A").extend(Step("It is", "small", stop))
    assert obstacle(opened, step("")) == ""
    assert not stuck(opened, step(""))
    ended = opened.extend(step(""))
    assert obstacle(ended, step("")) == "empty"
    assert stuck(ended, step(""))


def refusals(*texts: str) -> list[str]:
    """What the loop would refuse of *texts*, one after the other, if it had to commit them all the same."""
    grown, refused = chain(), list[str]()
    for text in texts:
        if obstacle(grown, step(text)):
            refused.append(text)
        grown = grown.extend(step(text))
    return refused


ROUND = (
    "Let me add the apples again: 12 + 3 = 15.",
    "Then she gives 4 away, which leaves 15 - 4 = 11.",
    "But wait, is that right? I should check the days.",
    "On Monday she has 12, on Tuesday 15, on Wednesday 11.",
)


def test_a_circle_of_many_steps_is_refused_from_the_third_step_of_its_third_round_on() -> None:
    assert refusals(*ROUND, *ROUND) == []
    assert refusals(*ROUND * 3) == list(ROUND[2:])


def test_words_that_vary_a_little_do_not_hide_a_circle() -> None:
    long = "Now I think about how the number of marbles changes from one day of the week to the day that follows it"
    varied = [
        [f"{start} {long} in paragraph {place}{mark}" for place in range(4)]
        for start, mark in (("Hmm,", "."), ("Hmm,", "!"), ("WAIT,", "."))
    ]
    assert refusals(*varied[0], *varied[1]) == []
    assert refusals(*varied[0], *varied[1], *varied[2]) == varied[2][2:]


@pytest.mark.parametrize("times", [3, 6])
def test_a_repair_is_stuck_when_it_ends_twice_as_long_a_circle(times: int) -> None:
    steps = ROUND * times
    stuck_at = [at for at in range(len(steps)) if stuck(chain(*steps[:at]), step(steps[at]))]
    assert stuck_at == list(range(8 + 5, len(steps)))


ALGEBRA = [
    line
    for x in range(2, 30)
    for line in (
        f"For x = {x}, we substitute x = {x} into the equation and simplify both of its sides.",
        f"x^2 + 2x + 1 = {x}^2 + 2*{x} + 1 = {x * x} + {2 * x} + 1 = {(x + 1) ** 2}",
        f"So (x + 1)^2 = {(x + 1) ** 2}, which is {'even' if x % 2 else 'odd'}.",
    )
]
LISTS = [
    [f"- Item {number}: the remainder of {number} divided by 3 is {number % 3}." for number in range(60)],
    [" ".join(f"{place:06b}") + f" has {place.bit_count()} ones." for place in range(64)],
    [f"| {a} | {b} | {a * b} |" for a in range(8) for b in range(8)],
    [f"a{index} = a{index - 1} + a{index - 2}" for index in range(2, 60)],
    [f"{letter} is to the left of {other}, so {letter} comes first." for letter in "abcdefg" for other in "abcdefg"],
    ALGEBRA,
    [*ALGEBRA[:30], "Let me verify all of this.", *ALGEBRA[:30]],
    ["Hmm.", "So x = 3.", "Wait.", "So x = 3, as I said.", "Then 2x = 6.", "So x = 3.", "Good.", "The answer is 3."],
]


@pytest.mark.parametrize("paragraphs", LISTS, ids=lambda paragraphs: paragraphs[0][:20])
def test_lists_derivations_and_one_check_of_them_are_no_circle(paragraphs: list[str]) -> None:
    assert refusals(*paragraphs) == []


def test_a_paragraph_that_was_written_in_parts_counts_as_one() -> None:
    kinds: tuple[Stop, Stop] = ("length", "until")
    parts = [
        Step(text, "small", stop) for line in ROUND for text, stop in zip((line[:9], line[9:]), kinds, strict=True)
    ]
    ended = [part for pair in zip(parts[::2], parts[1::2], strict=True) for part in (*pair, step(""))]
    grown = Chain((), (*ended, *ended, *ended[:8]))
    assert obstacle(grown, step("")) == "repetition"
    assert obstacle(Chain((), (*ended, *ended[:8])), step("")) == ""


@given(
    numbers=st.lists(st.integers(0, 9), min_size=3, max_size=9, unique=True),
    before=st.integers(0, 60),
)
@BOUNDED
def test_every_loop_is_found_within_its_third_round_after_any_text(numbers: list[int], before: int) -> None:
    circle = [f"Number {number} comes back to number {number}, again and again." for number in numbers]
    start = [f"Step {1000 + number} says something of its own." for number in range(before)]
    refused = refusals(*start, *circle * 3)
    assert refused == circle[2:]


@given(st.lists(st.text(alphabet="ab .1", min_size=1, max_size=12), max_size=30))
@BOUNDED
def test_new_text_is_never_refused(texts: list[str]) -> None:
    fresh = [f"{text} {number}" for number, text in enumerate(texts)]
    assert refusals(*fresh) == []


@given(st.integers(1, 400), st.text(alphabet="ab12 .", max_size=30))
@BOUNDED
def test_the_last_paragraphs_alone_decide(length: int, draft: str) -> None:
    """Whatever is longer ago than the window changes nothing, which is what makes a long chain cheap."""
    texts = [f"Paragraph {number % 7} of a long chain." for number in range(length)]
    full, recent = chain(*texts), chain(*texts[-(WINDOW + 2 * RUN) :])
    assert obstacle(full, step(draft)) == obstacle(recent, step(draft))
    assert stuck(full, step(draft)) == stuck(recent, step(draft))


@pytest.mark.parametrize("ending", ["length", "delimiter"])
@pytest.mark.parametrize(
    "loop", ["no ", "1, ", "and so on, and then ", "a b c d e f g h i j k l m n o p q r s t u v w x "]
)
def test_a_step_that_ends_in_the_same_words_again_and_again_is_refused(loop: str, ending: Stop) -> None:
    spinning = Step("Well, now. " + loop * 200, "small", ending)
    assert obstacle(chain("A"), spinning) == "repetition"
    assert not stuck(chain("A"), spinning)
    assert stuck(chain("A").extend(spinning), spinning)
    assert obstacle(chain("A"), Step(spinning.text + "But no.", "small", ending)) == ""


@pytest.mark.parametrize(
    "paragraphs",
    [
        "1 + " * 60 + "1 = 61",
        "0 & " * 100 + "1",
        ", ".join(map(str, range(300))),
        " ".join(f"{number:08b}" for number in range(200)),
    ],
)
def test_long_sums_and_rows_are_no_spin(paragraphs: str) -> None:
    assert obstacle(chain("A"), Step(paragraphs, "small", "length")) == ""


def test_the_end_of_the_thinking_is_not_compared() -> None:
    assert obstacle(chain("A"), Step("no " * 400, "small", "end")) == ""
    assert not stuck(chain("no " * 400), Step("no " * 400, "small", "end"))
