"""The worked reasoning of the miniature problems, which is read off their texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

from stepspec.evals.benchmarks.miniature import DAYS, PEOPLE

CHANGES: dict[str, Callable[[float, int], float]] = {
    r"buys (\d+) more|finds (\d+)|wins (\d+)": lambda value, n: value + n,
    r"gives away (\d+)|loses (\d+)|sells (\d+)": lambda value, n: value - n,
    r"doubles them": lambda value, n: value * 2,
    r"keeps half of them": lambda value, n: value / 2,
}


def understood(text: str) -> list[float]:
    """
    Read a problem as its reader would, and return the number of things at the beginning and after
    every day.
    """
    beginning = re.match(r"(\w+) has (\d+) (\w+)\. ", text)
    assert beginning
    person, start, item = beginning.groups()
    assert text.endswith(f" How many {item} does {person} have now?")
    values = [float(start)]
    for day, sentence in zip(DAYS, sentences(text), strict=False):
        clause = sentence.removeprefix(f"On {day} {PEOPLE[person]} ")
        ((change, match),) = [
            (c, m) for words, c in CHANGES.items() if (m := re.fullmatch(words, clause))
        ]
        values.append(change(values[-1], int(next(filter(None, match.groups()), 0))))
    return values


def sentences(text: str) -> list[str]:
    """Return the sentences of a problem that change the number of things, without full stops."""
    return re.findall(r"On [^.]*", text)


def worked_steps(text: str) -> list[str]:
    """Return the paragraphs of the worked reasoning on a problem, one or two for each day."""
    values = [int(value) for value in understood(text)]
    steps: list[str] = []
    for sentence, (value, result) in zip(sentences(text), pairwise(values), strict=True):
        if "doubles" in sentence:
            steps.append(f"{sentence}: {value} * 2 = {result}.\n\n")
            steps.append(f"Alternatively, {value} + {value} = {result}.\n\n")
        elif "half" in sentence:
            steps.append(f"{sentence}: {value} / 2 = {result}.\n\n")
            steps.append(f"Let me check: {result} + {result} = {value}.\n\n")
        else:
            sign = "+" if result > value else "-"
            steps.append(f"{sentence}: {value} {sign} {abs(result - value)} = {result}.\n\n")
    return steps
