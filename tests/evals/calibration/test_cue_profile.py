"""The profiler finds the openings after which the small model agrees, and writes settings that `solve` accepts."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec import Solver, settings
from stepspec.evals.calibration.cue_profile import (
    Cue,
    Sentence,
    caption,
    find_cues,
    load_problems,
    openings,
    profile,
    read_reasoning,
    sentences,
    snippet,
    summarise,
    table,
    training_problems,
)
from stepspec.evals.testbed.problems import generate
from stepspec.orchestrator import Chain, Policy, Step, Token
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.policies import Relay, make

from ...fakes import ScriptedModel, counting, run, tokenise

ROLES: tuple[Role, ...] = ("small", "large")

# The large model writes what the small one would, but for the last word.
TEXT = "The small one says 0.\n\nSo, the small one says one.\n</think>"


def sentence(text: str, ranks: str) -> Sentence:
    """A sentence of words, each with its rank."""
    pieces = tokenise(text)
    return Sentence(text, tuple(Token(piece, rank=int(rank)) for piece, rank in zip(pieces, ranks, strict=True)))


SURE, UNSURE = sentence("Thus, it is done.", "111111"), sentence("On we go now.", "12221")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One. Two! Three?", ["One.", " Two!", " Three?"]),
        ("One.\n\nTwo", ["One.\n\n", "Two"]),
        ("It is 3.14 so far...\nYes", ["It is 3.14 so far...\n", "Yes"]),
        ("A list:\n- one\n- two\n", ["A list:\n", "- one\n", "- two\n"]),
        ("", []),
    ],
)
def test_sentences_end_with_their_marks_and_with_lines(text: str, parts: list[str]) -> None:
    assert sentences(text) == parts


@given(st.text("ab .!?\n3", max_size=40))
def test_sentences_join_to_the_text(text: str) -> None:
    assert "".join(sentences(text)) == text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Thus, it is done.", ["Thus", "Thus,"]),
        (" On Monday she buys 5.", ["On", "On Monday", "On Monday she"]),
        ("Let me check: 3 + 3.", ["Let", "Let me", "Let me check"]),
        ("So far 3 is it.", ["So", "So far"]),
        ("Let's go.", ["Let's", "Let's go"]),
        ("12 is it.", []),
        ("", []),
    ],
)
def test_a_candidate_is_how_a_sentence_begins(text: str, found: list[str]) -> None:
    assert openings(text) == found


def test_the_text_after_a_cue_is_compared_with_the_small_model() -> None:
    assert [token.text for token in SURE.after("Thus,") or ()] == [" it", " is", " done", "."]
    assert [token.text for token in SURE.after("is") or ()] == [" done", "."]
    assert SURE.after("On") is None
    assert SURE.after("one") is not None  # within a word too, as a stop string is found
    assert [token.text for token in SURE.after("one") or ()] == ["."]


def test_a_cue_is_an_opening_after_which_the_small_model_clearly_agrees_more_than_usual() -> None:
    found = find_cues([SURE] * 30 + [UNSURE] * 30, least=10)
    assert [cue.text for cue in found] == ["Thus"]  # "Thus," would never be reached
    (cue,) = found
    assert (cue.n, cue.agreement, cue.high) == (30, 1.0, 1.0)
    assert cue.low == pytest.approx(0.886, abs=0.001)
    assert cue.share == pytest.approx(5 * 30 / (11 * 30))


def test_a_share_that_few_sentences_or_chance_could_explain_is_no_cue() -> None:
    assert find_cues([SURE] * 9 + [UNSURE] * 30, least=10) == ()
    assert find_cues([SURE] * 3 + [UNSURE] * 1, least=2) == ()  # 3 of 3 may well be luck
    assert find_cues([SURE] * 40, least=10) == ()  # nothing is above what is usual
    assert find_cues([], least=2) == ()


def test_a_cue_is_measured_wherever_it_is_found() -> None:
    within = sentence("We go Thus, wrong now.", "2112222")
    assert not find_cues([SURE] * 20 + [within] * 40 + [UNSURE] * 5, least=10)


def test_a_longer_cue_counts_where_the_shorter_one_does_not() -> None:
    bad = sentence("Thus we are wrong.", "12222")
    found = find_cues([SURE] * 40 + [bad] * 40, least=10)
    assert [cue.text for cue in found] == ["Thus,"]


def test_with_all_cues_the_first_one_in_a_sentence_counts() -> None:
    cues = tuple(Cue(text, 9, 1.0, 0.9, 1.0, 0.1) for text in ("is", "Thus"))
    found = summarise(2, [SURE, UNSURE], cues)
    assert (found.problems, found.sentences, found.tokens) == (2, 2, 11)
    assert found.agreement == pytest.approx(8 / 11)
    assert found.share == pytest.approx(5 / 11)
    assert found.after == 1.0


def test_nothing_read_is_nothing_found() -> None:
    found = summarise(0, [], ())
    assert (found.agreement, found.share, found.after) == (0.0, 0.0, 0.0)
    assert "do not relay" in caption(found)


def test_the_small_model_reads_the_reasoning_in_one_go() -> None:
    small = ScriptedModel("small", counting("small", 3))
    chain = Chain.of("How many?").extend(Step(TEXT, "large", "end"))
    read, _ = run(read_reasoning(small, chain))
    assert [found.text for found in read] == ["The small one says 0.\n\n", "So, the small one says one.\n"]
    assert all(token.rank == 1 for token in read[0].tokens)
    assert read[1].tokens[0].rank != 1
    assert [line for line in small.log if line.endswith("done")] == ["small score 0 done"]
    assert run(read_reasoning(small, Chain.of("How many?")))[0] == []


def test_the_large_model_solves_and_the_small_one_reads_every_problem() -> None:
    class Pair:
        """As much of a solver as there need be."""

        settings = settings.Settings()

        def __init__(self) -> None:
            self.models = {role: ScriptedModel(role, counting("large", 40)) for role in ROLES}

        def policy(self, name: str, options: object, *, budget: object) -> Policy:
            assert (name, options) == ("large", {})
            return make(name, self.models["small"], self.models["large"])

        @property
        def small(self) -> Pair:
            return self

        def model(self) -> ScriptedModel:
            return self.models["small"]

    notified: list[None] = []
    pair = Pair()
    solver = cast("Solver", pair)
    found, _ = run(profile(solver, ["One?", "Two?"], least=2, on_problem=lambda: notified.append(None)))
    assert (found.problems, found.sentences, len(notified)) == (2, 80, 2)
    assert found.agreement == 1.0  # of one mind, so that nothing is above what is usual
    assert found.cues == ()
    assert {line for line in pair.models["small"].log if line.endswith("done")} == {"small score 0 done"}


def test_a_failure_is_raised_as_it_is() -> None:
    """So that the command line can print it in one line."""

    class Pair:
        settings = settings.Settings()

        def policy(self, name: str, options: object, *, budget: object) -> Policy:
            raise ConfigurationError("no such server")

    with pytest.raises(ConfigurationError, match="no such server"):
        run(profile(cast("Solver", Pair()), ["One?", "Two?"]))


def test_the_settings_are_accepted_by_solve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cues = tuple(Cue(text, 30, 1.0, 0.9, 1.0, 0.1) for text in ("Thus,", 'He said "so"', "\\frac", "naïve", "🙂"))
    file = tmp_path / "relay.toml"
    file.write_text(snippet(summarise(30, [SURE], cues), "Two lines\nabout it"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPSPEC_CONFIG", str(file))
    loaded = settings.load()
    small, large = (ScriptedModel(role, counting(role, 3)) for role in ("small", "large"))
    made = make(loaded.policy, small, large, **loaded.options)
    assert isinstance(made, Relay)
    assert made.cues == tuple(cue.text for cue in cues)
    assert table(summarise(30, [SURE], cues)).row_count == len(cues)
    assert "With all cues" in caption(summarise(30, [SURE], cues))


def test_problems_are_lines_of_text_or_of_json(tmp_path: Path) -> None:
    file = tmp_path / "problems"
    file.write_text('One?\n\n{"problem": "Two?"}\n{"question": "Three?", "answer": 3}\nFour?\n')
    assert load_problems(file, 3) == ["One?", "Two?", "Three?"]
    assert load_problems(file, 9)[-1] == "Four?"


@pytest.mark.parametrize(
    ("text", "complaint"), [("", "empty"), ('{"answer": 3}', "problem 1"), ("One?\n{oops", "problem 2")]
)
def test_a_file_without_problems_is_an_error(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "problems"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=complaint):
        load_problems(file, 9)
    with pytest.raises(ConfigurationError, match="nowhere"):
        load_problems(tmp_path / "nowhere", 9)


def test_the_testbeds_cues_are_not_found_on_test_problems() -> None:
    profiled = training_problems(50, 7)
    training = {problem.text: problem.split for problem, _ in zip(generate(7, "train"), range(50), strict=False)}
    assert list(training) == profiled
    assert set(training.values()) == {"train"}
