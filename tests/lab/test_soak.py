"""The soak's account of what grows, and a minute of it on real processes."""

from __future__ import annotations

import pytest

from lab.soak import Part, Sample, Soak, complaints, measure, stalls


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
    lossy.notes, lossy.left_open = ["faults: lost: no reply"], 2
    assert complaints(lossy) == ["faults: lost: no reply", "2 requests are open at the end"]


def test_a_late_answer_of_health_is_a_complaint() -> None:
    assert stalls(Soak(health=[0.01, 0.5])) == []
    assert stalls(Soak(health=[0.01, 0.75, 2.0])) == ["/health took more than 0.5 s 2 times, at most 2.00 s"]


@pytest.mark.servers
async def test_a_third_of_a_minute_with_a_fault_loses_nothing() -> None:
    soak = await measure(0.32, 0.1, 4, 1, lambda seconds: None)  # The first fault of this seed comes after 5 s.
    assert complaints(soak) == []
    assert soak.faults.total()
    assert soak.hostile
    assert soak.health
    assert all(soak.seconds[part] for part in soak.seconds)
