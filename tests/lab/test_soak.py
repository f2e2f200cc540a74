"""The soak's account of what grows, and a minute of it on real processes."""

from __future__ import annotations

import pytest

from lab.soak import HOSTILE, Part, Sample, Soak, complaints, measure, refused, stalls


def soaked(after: int, memory: int = 50_000) -> Soak:
    soak = Soak()
    parts: tuple[Part, ...] = ("before", "faults", "after")
    for place, part in enumerate(parts):
        for second in range(3):
            grown = part == "after"
            tasks, kib = (after, memory) if grown else (20, 50_000)
            soak.samples.append(Sample(3.0 * place + second, part, kib, 30, tasks, 5))
    return soak


def test_what_grows_is_a_complaint() -> None:
    assert complaints(soaked(22)) == []
    assert complaints(soaked(60)) == ["tasks: 20 before the faults, 60 after"]
    assert complaints(soaked(20, memory=90_000)) == ["memory: 50000 before the faults, 90000 after"]
    lossy = soaked(20)
    lossy.notes = ["faults: lost: no reply"]
    lossy.left_open = 2
    assert complaints(lossy) == ["faults: lost: no reply", "2 requests are open at the end"]


def test_a_late_answer_of_health_is_a_complaint() -> None:
    assert stalls(Soak(health=[0.01, 0.5])) == []
    assert stalls(Soak(health=[0.01, 0.75, 2.0])) == [
        "/health took more than 0.5 s 2 times, at most 2.00 s"
    ]


def test_a_body_is_refused_in_few_words_for_what_it_is_or_for_servers_that_fail() -> None:
    answers = [
        (400, 100),
        (413, 5000),
        (400, 5001),
        (503, 100),
        (529, 5000),
        (503, 5001),
        (500, 9),
        (200, 9),
    ]
    assert [each for each in answers if refused(*each, failing=False)] == answers[:2]
    assert [each for each in answers if refused(*each, failing=True)] == [
        *answers[:2],
        *answers[3:5],
    ]
    assert max(len(body) for _, body in HOSTILE) <= 4 * 2**20  # A longer one is not read at all.


@pytest.mark.servers
async def test_a_third_of_a_minute_with_a_fault_loses_nothing() -> None:
    # The first fault of this seed comes after 5 s.
    soak = await measure(0.32, 0.1, 4, 1, lambda seconds: None)
    assert complaints(soak) == []
    assert soak.faults.total()
    assert soak.hostile
    assert soak.health
    assert any(soak.seconds.values())
