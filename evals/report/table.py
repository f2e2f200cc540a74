"""A table before it is written in any format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Link:
    """Text that leads to the page of a trace."""

    text: str
    target: str


Cell: TypeAlias = str | Link
Row: TypeAlias = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """*columns*, the first of which names the rows, and a *note* that says what they mean."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""
    words: int = 1  # so many columns, from the first, are words; the rest are numbers


def percent(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:.{digits}%}"


def number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def interval(value: str, low: str, high: str) -> str:
    return f"{value} [{low}, {high}]"
