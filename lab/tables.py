"""Tables of texts, for the terminal and for documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import typer
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table of texts."""

    columns: tuple[str, ...]
    """The headings."""
    rows: Sequence[Sequence[str]]
    """The texts of each row."""
    title: str = ""
    """The title above the table; "": none."""
    left: int = 1
    """How many of the first columns are words, which stand on the left."""

    def table(self) -> Table:
        title = self.title or None
        rendered = Table(
            box=None,
            padding=(0, 1, 0, 0),
            title=title,
            title_justify="left",
            title_style="bold",
        )
        for place, column in enumerate(self.columns):
            words = place < self.left
            rendered.add_column(
                column,
                justify="left" if words else "right",
                no_wrap=words,
            )
        for row in self.rows:
            rendered.add_row(*row)
        return rendered

    def markdown(self) -> str:
        words = len(self.columns[: self.left])
        rule = ["---"] * words + ["--:"] * (len(self.columns) - words)
        lines = "\n".join(f"| {' | '.join(row)} |" for row in (self.columns, rule, *self.rows))
        return f"**{self.title}**\n\n{lines}" if self.title else lines


def exit_with(complaints: Sequence[str], console: Console) -> None:
    """Print *complaints*, and exit with 1 if there are any."""
    for complaint in complaints:
        console.print(
            complaint,
            style="bold red",
            highlight=False,
            markup=False,
        )
    if complaints:
        raise typer.Exit(1)
