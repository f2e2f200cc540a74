"""
Which web pages may use a service without keys: its own, and those of `cors_origins`.

A browser sends a page's requests to any address, this machine's own included, and a page whose name is made to point
there (DNS rebinding) may read the answers too. Keys stop both; without them, `Host` and `Origin` tell such requests.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

from .errors import ApiError

LOCAL_DOMAINS = (".localhost", ".local", ".internal", ".home.arpa", ".test")  # nobody can register a name below them


def check_origin(headers: Mapping[str, str], origins: Sequence[str]) -> None:
    """Raise `ApiError` if a request to a service without keys comes from a page other than its own and *origins*."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if origin is not None and "*" not in origins and origin not in origins and origin.partition("://")[2] != host:
        raise ApiError(
            403,
            f"pages of {origin!r} may not use this service: list it in STEPSPEC_SERVICE__CORS_ORIGINS (or "
            "--cors-origin), or set STEPSPEC_SERVICE__KEYS (or --key)",
            code="origin_not_allowed",
        )
    if registrable(host):
        raise ApiError(
            403,
            f"the service has no key, and {host!r} is not a name of this machine alone: use its address, set "
            "STEPSPEC_SERVICE__KEYS (or --key), or add --insecure to admit every client",
            code="host_not_allowed",
        )


def registrable(host: str) -> bool:
    """Whether *host*, with or without a port, is a name that others can own: no address, and no name of a local net."""
    before, _, port = host.rpartition(":")
    name = (before if port.isdecimal() else host).lower().rstrip(".")
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return "." in name and not name.endswith(LOCAL_DOMAINS)
    return False
