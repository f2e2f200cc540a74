"""A trace is read as it was written, and gives back the run's chain."""

import asyncio
from functools import partial
from math import inf
from pathlib import Path
from typing import get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Chain, Rollback, Step, Token
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Answered, Committed, Event, Finished, Judged, Started
from stepspec.orchestrator.trace import Moment, Recorder, Stopwatch, dump, parse, read, write
from tests.fakes import replay

from ..fakes import run
from .arms import ARMS, BOUNDED, PROBLEM, arm

TOKENS = st.builds(Token, st.text(), st.floats(max_value=0))
# the others follow from the types of fields
STRATEGIES: dict[type[object], st.SearchStrategy[object]] = {
    float: st.floats(allow_nan=False),
    int: st.integers(-1, 2**40),
    Token: st.builds(Token, top=st.lists(TOKENS, max_size=2).map(tuple)),
    Step: st.builds(Step, tokens=st.lists(TOKENS, max_size=2).map(tuple)),
}
for kind, strategy in STRATEGIES.items():
    st.register_type_strategy(kind, strategy)


@pytest.mark.parametrize("kind", get_args(Event))
def test_every_event_is_read_as_it_was_written(kind: type[Event]) -> None:
    @given(event=st.from_type(kind), at=st.floats(0, 1e6).map(partial(round, ndigits=6)))
    @BOUNDED
    def check(event: Event, at: float) -> None:
        line = dump(Moment(at, event))
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        assert parse(line) == Moment(at, event)

    check()


@pytest.mark.parametrize("kind", get_args(Event))
def test_every_event_is_recorded_as_it_was(kind: type[Event]) -> None:
    @given(events=st.lists(st.from_type(kind), max_size=3))
    @BOUNDED
    def check(events: list[Event]) -> None:
        recorder = Recorder(lambda: 0.5)
        for event in events:
            recorder(event)
        assert recorder.events == events
        assert recorder.moments == [Moment(0.5, event) for event in events]

    check()


@pytest.mark.parametrize("name", ARMS)
def test_the_trace_of_a_run_replays_to_its_chain(name: str, tmp_path: Path) -> None:
    async def main() -> tuple[Chain, list[Moment]]:
        running = arm(name, seed=11, sticky=True)
        recorder = Recorder(lambda: 0.0)
        recorder(Started(PROBLEM.messages, name))
        chain, _ = await running.run(ahead=2)
        for event in running.events:
            recorder(event)
        recorder(Answered(Step("It is 42.", "large", "end")))
        return chain.extend(Step("It is 42.", "large", "end")), recorder.moments

    (chain, moments), _ = run(main())
    write(tmp_path / "trace.jsonl", moments)
    assert read(tmp_path / "trace.jsonl") == moments
    (tmp_path / "spaced.jsonl").write_bytes(b"\n  \n".join(map(dump, moments)))
    assert read(tmp_path / "spaced.jsonl") == moments
    assert replay(moment.event for moment in moments) == chain


def test_infinities_survive_a_round_trip() -> None:
    never = Token("never", -inf, top=(Token("nor this", -inf),))
    moment = Moment(0.5, Judged(0, Step("never", "small", tokens=(never,)), Rollback(score=-inf)))
    assert b"null" not in dump(moment).replace(b'"instead":null', b"")
    assert parse(dump(moment)) == moment


GOOD = orjson.loads(dump(Moment(0.5, Finished("stop", "42", 1.0))))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"garbage",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"3",
        b"{}",
        orjson.dumps(GOOD)[:-5],
        orjson.dumps({**GOOD, "event": "Vanished"}),
        orjson.dumps({**GOOD, "event": ["Finished"]}),
        orjson.dumps({**GOOD, "at": "soon"}),
        orjson.dumps({**GOOD, "at": None}),
        orjson.dumps({**GOOD, "seconds": "long"}),
        orjson.dumps({**GOOD, "more": 1}),
        orjson.dumps({key: GOOD[key] for key in GOOD if key != "answer"}),
        orjson.dumps({key: GOOD[key] for key in GOOD if key != "at"}),
    ],
)
def test_a_line_that_is_not_of_a_trace_is_shown(line: bytes) -> None:
    with pytest.raises(ConfigurationError, match="not a line of a trace") as caught:
        parse(line)
    assert repr(line[:80]) in str(caught.value)


@pytest.mark.parametrize("events", [[], [Committed(0, Step("So.", "small"))]])
def test_a_trace_without_a_beginning_cannot_be_replayed(events: list[Event]) -> None:
    with pytest.raises(ConfigurationError, match="does not begin with the event Started"):
        replay(events)


def test_a_stopwatch_starts_when_it_is_first_read() -> None:
    async def readings() -> list[float]:
        clock = Stopwatch()
        await asyncio.sleep(1)
        first = clock()
        await asyncio.sleep(2)
        return [first, clock()]

    assert run(readings()) == ([0.0, 2.0], 3.0)


def test_a_recorder_notes_the_time_of_its_clock() -> None:
    clock = iter([0.25, 3.0])
    recorder = Recorder(lambda: next(clock))
    events: list[Event] = [Finished(reason, "", 0.0) for reason in ("time", "stop")]
    for event in events:
        recorder(event)
    assert recorder.moments == [Moment(0.25, events[0]), Moment(3.0, events[1])]
    assert recorder.events == events
