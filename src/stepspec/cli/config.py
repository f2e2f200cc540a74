"""The command about settings: ``config show``."""

from __future__ import annotations

from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from .. import settings as configuration
from ..setting_sources import Layer, layers, origin
from ..settings import flat
from .command_line import print_json
from .flags import BUDGET, COMMON, SAMPLING, SEED, Json, with_settings
from .program import add_command, new_app, stdout

WIDE = 1_000_000  # columns, so that no line of the table is wrapped
SHOW_EXAMPLES = """
Examples:

  stepspec config show

  stepspec config show --config policy.toml --json | jq '."options.threshold"'

  STEPSPEC_AHEAD=4 stepspec config show --temperature 0
"""

app = new_app(help="Show where the settings come from.", no_args_is_help=True)


@with_settings(*COMMON, *SAMPLING, *SEED, *BUDGET)
def show(json: Json = False) -> None:
    """
    Print every setting with its value and where it comes from: a flag, a variable, a key of a file,
    or the default.

    API keys are hidden. The flags are those of `solve` and `serve`: with them, show what such a
    command would use.
    """
    settings = configuration.load()
    found = layers({})
    values = flat(settings.model_dump(mode="json"))
    shown = {
        name: _shown(name, value, found)
        for name, value in values.items()
        if not name.endswith(".role")  # It follows from the place.
    }
    if json:
        print_json(shown)
        return
    table = Table(
        "setting",
        "value",
        "from",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for name, setting in shown.items():
        value = "none" if setting["value"] is None else orjson.dumps(setting["value"]).decode()
        source = setting["name"] or setting["source"]
        table.add_row(name, value, source, style="dim" if source == "default" else "")
    # A setting is one line, also for grep.
    Console(file=stdout.file, width=WIDE, markup=False, emoji=False).print(table)


def _shown(name: str, value: object, found: tuple[Layer, ...]) -> dict[str, Any]:
    """Return the *value* of one setting without secrets, its source, and its name there."""
    place = tuple(name.split("."))
    layer = origin(found, place)
    if layer is None or layer.depth(place) < len(place):
        return {"value": value, "source": "default", "name": ""}
    return {"value": value, "source": layer.source, "name": layer.name(place)}


add_command(app, show, SHOW_EXAMPLES)
