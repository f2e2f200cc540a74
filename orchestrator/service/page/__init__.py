"""The page that shows who thinks: one document without any external resource, live or about one trace."""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path

from ...errors import ConfigurationError
from ...events import Started
from ...trace import parse

__all__ = ["allowed", "headers", "html", "script", "style"]

FOLDER = Path(__file__).parent
# Each after those that it imports: they become one script, in which every name is there only once.
MODULES = (
    "element", "trace", "pieces", "reduce", "ledger", "threshold", "within", "spans",
    "theme", "announce", "chain", "timeline", "summary", "slider", "form", "live", "trust", "page",
)  # fmt: skip
LIVE = "'self'"  # where the live page may connect to
_IMPORT = re.compile(r"^import .*?;\n", re.MULTILINE | re.DOTALL)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


def html(trace: bytes | None = None) -> str:
    """
    Return the page: live, for the service that serves it, or about *trace*, the bytes of a trace file.

    Raise `ConfigurationError` for bytes that are no trace.
    """
    if trace is None:
        return _page(connect=LIVE, composer="", trace="")
    lines = _checked(trace).replace("<", "\\u003c")  # In JSON it stands in strings only, so it says the same.
    embedded = f'<script type="application/jsonl" id="trace">{lines}</script>'
    return _page(connect="'none'", composer="hidden", trace=embedded)


def _checked(trace: bytes) -> str:
    lines = [line for line in trace.splitlines() if line.strip()]
    events = [parse(line).event for line in lines]
    if not events or not isinstance(events[0], Started):
        raise ConfigurationError(
            "not a trace: it does not begin with the event Started; `stepspec solve --trace FILE` writes one"
        )
    return b"\n".join(lines).decode()


def headers() -> dict[str, str]:
    """What the service sends beside the live page; a document's own policy cannot forbid to frame it."""
    return {
        "Content-Security-Policy": f"{_policy(LIVE)}; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }


@cache
def _policy(connect: str) -> str:
    return (
        f"default-src 'none'; script-src {allowed(script(MODULES))}; style-src {allowed(style())}; "
        f"connect-src {connect}; img-src data:; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'"
    )


def _page(*, connect: str, composer: str, trace: str) -> str:
    places = {
        "security": _policy(connect),
        "style": style(),
        "script": script(MODULES),
        "composer": composer,
        "trace": trace,
    }
    return re.sub(r"{{(\w+)}}", lambda place: places[place[1]], _read("page.html"))


def allowed(inline: str) -> str:
    """The source by which a Content-Security-Policy allows this *inline* text, and no other."""
    return f"'sha256-{b64encode(sha256(inline.encode()).digest()).decode()}'"


@cache
def style() -> str:
    """The style sheets, for any document that is to look like this one."""
    return f"\n{_read('look.css')}{_read('parts.css')}"


@cache
def script(modules: tuple[str, ...]) -> str:
    """Join *modules*, each after those that it imports, into one script."""
    return "\n" + "\n".join(_EXPORT.sub("", _IMPORT.sub("", _read(f"{name}.js"))) for name in modules)


@cache
def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
