"""The command about settings: ``config show``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from pydantic import BaseModel
from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.table import Table

from stepspec.orchestrator.toml import one_line

from .. import policies
from .. import settings as configuration
from ..setting_sources import Layer, Place, layers, origin
from ..settings import Settings
from .command_line import print_json
from .flags import BUDGET, SAMPLING, SEED, Json, with_settings
from .program import add_command, new_app, stdout

WIDE = 1_000_000  # columns, so that no line of the table is wrapped
SHOW_EXAMPLES = """
Examples:

  stepspec config show

  stepspec config show --config policy.toml --json | jq '."options.threshold"'

  STEPSPEC_AHEAD=4 stepspec config show --temperature 0
"""

app = new_app(help="Show where the settings come from.", no_args_is_help=True)


@with_settings("serve", SAMPLING, SEED, BUDGET)
def show(json: Json = False) -> None:
    """
    Print every setting with its value and where it comes from: a flag, a variable, a key of a file,
    or the default.

    API keys are hidden. The flags are those of `solve` and `serve`: with them, show what such a
    command would use.
    """
    settings = configuration.load()
    policies.check(settings.policy, settings.options)
    found = layers(Settings, {})
    shown = {".".join(place): _shown(place, value, found) for place, value in _leaves(settings)}
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
        value = "none" if setting["value"] is None else one_line(setting["value"])
        source = setting["name"] or setting["source"]
        table.add_row(name, value, source, style="dim" if source == "default" else "")
    # A setting is one line, also for grep.
    Console(file=stdout.file, width=WIDE, markup=False, emoji=False).print(table)


def _leaves(model: BaseModel) -> Iterator[tuple[Place, object]]:
    for name, value in model:
        if name == "role":  # It follows from the place.
            continue
        if isinstance(value, BaseModel):
            for place, leaf in _leaves(value):
                yield (name, *place), leaf
        elif isinstance(value, dict) and value:
            for key, leaf in cast("dict[Any, object]", value).items():
                yield (name, str(key)), leaf
        else:
            yield (name,), value


def _shown(place: Place, value: object, found: tuple[Layer, ...]) -> dict[str, Any]:
    """Return the *value* of one setting without secrets, its source, and its name there."""
    layer = origin(found, place)
    source = "default"
    name = ""
    if layer is not None and layer.depth(place) == len(place):
        source = layer.source
        name = layer.name(place)
    return {"value": to_jsonable_python(value), "source": source, "name": name}


add_command(app, show, SHOW_EXAMPLES)
