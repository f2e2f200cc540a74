"""The page that shows a run: one document without external resources, live or of one trace."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path

from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Started
from stepspec.orchestrator.trace import parse

FOLDER = Path(__file__).parent
MODULES = (
    "element", "trace", "axis", "diff", "reduce", "estimate", "fates", "folds",
    "ledger", "spans", "announce", "text", "chain", "highlight", "timeline", "keys", "speed",
    "summary", "form", "live", "page",
)  # fmt: skip
"""
The modules in the order of their imports. They are joined into one script, so no two of them may
define the same name.
"""
LIVE_ORIGIN = "'self'"
"""The only origin that the live page may connect to."""
_IMPORT = re.compile(r"^import .*?;\n", re.MULTILINE | re.DOTALL)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


def html(trace: bytes | None = None) -> str:
    """
    Return the page: live if *trace* is None, or of *trace*, the bytes of a trace file.

    Raise `ConfigurationError` if the bytes are no trace.
    """
    if trace is None:
        return _page(connect=LIVE_ORIGIN, composer="", trace="")
    # JSON has this sign in strings only, where the escape means the same
    lines = _checked(trace).replace("<", "\\u003c")
    embedded = f'<script type="application/jsonl" id="trace">{lines}</script>'
    return _page(connect="'none'", composer="hidden", trace=embedded)


def _checked(trace: bytes) -> str:
    lines = [line for line in trace.splitlines() if line.strip()]
    events = [parse(line).event for line in lines]
    if not events or not isinstance(events[0], Started):
        raise ConfigurationError(
            "not a trace: it does not begin with the event Started; `stepspec solve --trace FILE`"
            " writes one"
        )
    return b"\n".join(lines).decode()


def headers() -> dict[str, str]:
    """Return the headers of the live page. Only a header can forbid other pages to frame it."""
    return {
        "Content-Security-Policy": f"{_policy(LIVE_ORIGIN)}; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }


@cache
def _policy(connect: str) -> str:
    return (
        f"default-src 'none'; script-src {allowed(script())}; style-src {allowed(style())}; "
        f"connect-src {connect}; img-src data:; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'"
    )


def _page(*, connect: str, composer: str, trace: str) -> str:
    places = {
        "security": _policy(connect),
        "style": style(),
        "script": script(),
        "composer": composer,
        "trace": trace,
    }
    return re.sub(r"{{(\w+)}}", lambda place: places[place[1]], _read("page.html"))


def allowed(inline: str) -> str:
    """Return the source with which a Content-Security-Policy allows this *inline* text only."""
    return f"'sha256-{b64encode(sha256(inline.encode()).digest()).decode()}'"


@cache
def style() -> str:
    return f"\n{_read('look.css')}{_read('parts.css')}"


@cache
def script() -> str:
    """Join the modules into one script."""
    return "\n" + "\n".join(
        _EXPORT.sub("", _IMPORT.sub("", _read(f"{name}.js"))) for name in MODULES
    )


@cache
def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
