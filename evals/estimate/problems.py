"""Problems to measure with: a user's own, one a line, or some that need no download. Their answers are not needed."""

from __future__ import annotations

from pathlib import Path

import orjson

from stepspec.orchestrator.errors import ConfigurationError

PROBLEMS: tuple[str, ...] = (
    "A train leaves at 14:05 and travels 210 km at 84 km/h, with a stop of 12 minutes. When does it arrive?",
    "How many positive integers below 1000 are divisible by 6 or by 15, but not by 10?",
    "A rectangle's length is 3 cm more than twice its width, and its area is 119 square cm. Find its perimeter.",
    "Three dice are rolled. What is the probability that their sum is 11?",
    "Find all real x with x^4 - 13x^2 + 36 = 0, and the sum of their squares.",
    "A shop raises a price by 20%, then lowers it by 15%, then by another 5%. By how much has it changed in all?",
    "In how many ways can 7 people sit around a round table if two of them do not want to be neighbours?",
    "What is the remainder when 7^2026 is divided by 100?",
    "The sides of a triangle are 13, 14 and 15. Find its area and the radius of its inscribed circle.",
    "A tank is filled by one pipe in 6 hours and by another in 4, and a drain empties it in 12. All three are open. "
    "How long does it take to fill the tank?",
    "Find the number of integer solutions of x + y + z = 20 with x >= 1, y >= 2 and z >= 3.",
    "A geometric sequence has the second term 12 and the fifth term 324. Find the sum of its first six terms.",
    "What is the largest prime factor of 10! + 11! + 12!?",
    "Two cards are drawn from a deck of 52 without replacement. What is the probability that both are red or both are "
    "face cards?",
    "A circle passes through (0, 0), (8, 0) and (0, 6). Find its centre, its radius, and the length of the chord on "
    "the line y = x.",
    "Anna is three times as old as Ben was when Anna was as old as Ben is now. Together they are 50. How old are they?",
    "How many zeros are at the end of 2026!, written in base 10?",
    "Let f(x) = (2x + 3)/(x - 1). Find f(f(x)) and every x for which f(f(x)) = x.",
    "From the digits 1 to 6, each used at most once, how many four-digit numbers divisible by 4 can be formed?",
    "A boat takes 3 hours for 36 km downstream and 4.5 hours back. Find the speed of the boat and of the current, and "
    "the time for 20 km upstream.",
)


def load_problems(path: Path, count: int) -> list[str]:
    """
    Read up to *count* problems, one for each line: plain text, or a JSON object with its "problem" or "question".

    Raise `ConfigurationError` for a file that has none, or a line that is neither.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"no problems in {path}: {exc}") from exc
    found = [_problem(path, number, line) for number, line in enumerate(lines[:count], 1)]
    if not found:
        raise ConfigurationError(f"no problems in {path}: the file is empty")
    return found


def _problem(path: Path, number: int, line: str) -> str:
    if not line.lstrip().startswith("{"):
        return line.strip()
    try:
        fields = orjson.loads(line)
        return str(fields["problem"] if "problem" in fields else fields["question"])
    except (orjson.JSONDecodeError, KeyError) as exc:
        raise ConfigurationError(
            f'{path}, problem {number}: a line that begins with a brace has to be a JSON object with "problem"'
        ) from exc
