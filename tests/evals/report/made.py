"""Run folders and samples made by hand, so that every figure can be worked out on paper."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import orjson

from stepspec.evals.arms import LARGE, SHIPPED, SMALL
from stepspec.evals.report.formats import Links, to_html
from stepspec.evals.report.run_folder import read_folder
from stepspec.evals.report.section import Section, build_section
from stepspec.evals.sample import Arm, Sample
from stepspec.evals.store import SampleStore
from stepspec.orchestrator.ledger import Account, Ledger
from stepspec.orchestrator.solution import SolvedStep

ARMS = (LARGE, SMALL, SHIPPED)
# a real one, cut down to some problems, arms and traces without tokens
RECORDED = Path(__file__).parent / "run"
NOBODY = Account("small")

KEPT = SolvedStep(0, "small", "", 8.0, "kept", "", 0.4)
REJECTED = SolvedStep(0, "small", "", 2.0, "rejected", "grade", 0.6)
LOST = SolvedStep(0, "small", "", None, "lost", "", 0.6)
REPAIR = SolvedStep(0, "large", "", None, "kept", "grade", 0.9)
BY_SMALL = SolvedStep(0, "small", "", None, "kept", "", 0.2)
BY_LARGE = SolvedStep(0, "large", "", None, "kept", "", 0.8)


def large(seconds: float, *, correct: bool = True) -> Sample:
    account = Account("large", kept=100, prompt=40, cached=10, requests=2, writing=seconds)
    return Sample(
        LARGE.name,
        correct,
        seconds,
        Ledger(NOBODY, account),
        steps=(BY_LARGE,) * 4,
    )


def small(seconds: float, *, correct: bool = True) -> Sample:
    account = Account("small", kept=80, prompt=40, cached=20, requests=2, writing=seconds)
    return Sample(
        SMALL.name,
        correct,
        seconds,
        Ledger(account, Account("large")),
        steps=(BY_SMALL,) * 4,
    )


def mixed(
    seconds: float, *, correct: bool = True, arm: Arm = SHIPPED, grade: float = 8.0
) -> Sample:
    """Four drafts, one of which falls and takes a bet along."""
    ledger = Ledger(
        Account("small", kept=60, discarded=20, prompt=50, cached=25, requests=2, writing=0.5),
        Account(
            "large",
            kept=20,
            judging=200,
            prompt=400,
            cached=300,
            requests=5,
            writing=0.6,
            judged=0.4,
        ),
        drafts=4,
        accepted=3,
    )
    graded = SolvedStep(0, "small", "", grade, "kept", "", 0.4)
    return Sample(
        arm.name, correct, seconds, ledger, steps=(graded, KEPT, REJECTED, LOST, REPAIR, KEPT)
    )


def samples() -> dict[tuple[int, str], Sample]:
    """
    Four problems: the small model fails at two of them, the mixture at one, which is not the large
    one's.
    """
    return {
        **{(n, LARGE.name): large(4.0, correct=n != 3) for n in range(4)},
        **{(n, SMALL.name): small(1.0, correct=n < 2) for n in range(4)},
        **{(n, SHIPPED.name): mixed(2.0 + n, correct=n != 2) for n in range(4)},
    }


def folder(
    path: Path,
    done: Mapping[tuple[int, str], Sample] | None = None,
    arms: Sequence[Arm] = ARMS,
    texts: Sequence[str] = ("What is 1 + 1?", "What is 1 + 2?", "What is 1 + 3?", "What is 1 + 4?"),
    **about: Any,
) -> Path:
    """Write a run folder, as `stepspec eval` does."""
    head = {
        "benchmark": "sums",
        "problems": "b1a5",
        "half": None,
        "prompt": None,
        "models": {"small": "tiny", "large": "huge"},
        "arms": [arm.record() for arm in arms],
        "sampling": {"temperature": 0.0},
        "budget": {"tokens": 512, "seconds": None},
        "repeats": 1,
        "seed": 0,
        "concurrency": 1,
        **about,
    }
    with SampleStore(path / "samples.jsonl", head) as kept:
        for (number, _), sample in (samples() if done is None else done).items():
            kept.add(number, sample)
    lines = (
        {"number": n, "name": "", "problem": text, "answer": "2"} for n, text in enumerate(texts)
    )
    (path / "problems.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    (path / "run.json").write_bytes(orjson.dumps(record(head)))
    return path


def record(about: Mapping[str, Any]) -> dict[str, Any]:
    server = {"version": "0.32.0", "models": [{"id": "m", "max_model_len": 2048}]}
    session = {
        "date": "2026-11-21T20:00:00+00:00",
        "ended": "2026-11-21T20:05:00+00:00",
        "commit": "c0ffee",
        "command": ["stepspec", "eval", "sums"],
        "python": "3.11.7",
        "platform": "Linux",
        "cpus": 2,
        "versions": {"stepspec": "0.1.0"},
        "servers": [
            {**server, "role": role, "url": f"http://{role}:1"} for role in ("small", "large")
        ],
    }
    benchmark = {
        "name": about["benchmark"],
        "source": "",
        "subset": None,
        "split": "test",
        "licence": "MIT",
    }
    return {"about": about, "benchmark": benchmark, "sessions": [session]}


def crowd(count: int, problems: int = 20) -> tuple[tuple[Arm, ...], dict[tuple[int, str], Sample]]:
    """
    Arms, most with long names, and their samples: both baselines and methods, *count* in all.

    Three of the methods are at the same place, and all others but one are nearly as fast and as
    accurate.
    """
    methods = [
        Arm.of(f"speculative-thinking:{place:x}", "specreason") for place in range(count - 3)
    ]
    chance = Arm.of("chance", "random")
    done = {(n, LARGE.name): large(4.0 + n / 9, correct=n != 3) for n in range(problems)}
    done |= {(n, SMALL.name): small(1.0 + n / 40, correct=n % 3 == 0) for n in range(problems)}
    done |= {
        (n, chance.name): mixed(1.9 + n / 20, correct=n % 2 == 0, arm=chance)
        for n in range(problems)
    }
    for place, arm in enumerate(methods):
        seconds = 9.0 if place == len(methods) - 1 else 2.0 + max(0, place - 2) / 25
        for n in range(problems):
            done[n, arm.name] = mixed(seconds + n / 20, correct=n != max(0, place - 2) % 4, arm=arm)
    return (LARGE, SMALL, *methods, chance), done


def make_section(path: Path, **changed: Any) -> Section:
    """The section of a report about a folder that is made at *path*."""
    run = read_folder(folder(path, **changed))
    return build_section(run)


VOID = re.compile(r"<(meta|link)([^>]*?)/?>")


def parsed(page: str) -> ElementTree.Element:
    """The main part of a report, as a tree."""
    body = re.sub(r"(?s)^.*<main", "<main", page).partition("</main>")[0] + "</main>"
    return ElementTree.fromstring(VOID.sub(r"<\1\2/>", body))


def tables(section: Section, links: Links | None = None) -> dict[str, list[dict[str, str]]]:
    """The rows of all tables of the report of *section*, by their titles."""
    found: dict[str, list[dict[str, str]]] = {}
    for card in parsed(to_html([(section, links or {})], "made")).iter("section"):
        title = card.find("h4")
        if title is None:
            continue
        head, *rows = [["".join(cell.itertext()) for cell in row] for row in card.iter("tr")]
        assert all(len(row) == len(head) for row in rows)
        found[str(title.text)] = [dict(zip(head, row, strict=True)) for row in rows]
    return found


def notices(section: Section) -> list[str]:
    """The remarks on the limits of the figures of *section*."""
    (notice,) = [
        each
        for each in parsed(to_html([(section, {})], "made")).iter("div")
        if each.get("class") == "notice"
    ]
    return ["".join(each.itertext()) for each in notice]
