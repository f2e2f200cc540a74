"""Results of arms as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from .arms import Result


def table(results: Sequence[Result], title: str = "") -> Table:
    """One row per arm; the small print says what the columns mean."""
    columns = ("", "n", "accuracy", "seconds", "of large alone", "of floor", "tokens by large", "accepted", "waste")
    made = Table(title=title or None, box=None, title_justify="left")
    for column in columns:
        made.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for r in results:
        low, high = r.accuracy_interval
        made.add_row(
            r.name,
            str(r.n),
            f"{r.accuracy:.1%} [{low:.0%}, {high:.0%}]",
            f"{r.seconds:.2f}",
            f"{r.ratio_to_large:.2f} [{r.ratio_to_large_interval[0]:.2f}, {r.ratio_to_large_interval[1]:.2f}]",
            f"{r.ratio_to_floor:.2f}",
            f"{r.share_large_tokens:.0%}",
            "" if r.accept_rate is None else f"{r.accept_rate:.0%}",
            f"{r.waste:.0%}",
        )
    return made


SMALL_PRINT = (
    "The miniature pair: two models of 0.1 and 1.3 million parameters, trained on arithmetic, served by real vLLM "
    "on this CPU; only the cost of a forward pass is set (large 30 ms + 60 us a token, small 6 ms + 20 us), to have "
    "the shape of a GPU's. Seconds are the mean of one problem; brackets are 95% intervals. Floor: the time to write "
    "every kept token on the model that wrote it. Waste: written tokens that were not kept."
)
