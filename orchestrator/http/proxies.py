"""
The proxy of a request: ``http_proxy``, ``https_proxy``, ``all_proxy`` and ``no_proxy``.

``no_proxy`` is read as curl, Go and Kubernetes' tools read it. An entry is a name with all names
below it (``example.com``, ``.svc``, ``*.svc``), or an address, each with or without a port, a block
of addresses (``10.0.0.0/8``, ``fd00::/8``), or ``*``. The image's health check uses this module,
too, which therefore imports nothing of stepspec.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

ENTRY = re.compile(r"[^,\s]+")
DEFAULT_PORTS: Mapping[str, int] = {"http": 80, "https": 443}


def proxy_of(url: str) -> str | None:
    """Return the proxy for *url* that the environment names, as it is written there, or None."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    host = parts.hostname or ""
    server = parts.netloc.rpartition("@")[2].lower()
    if not parts.port:
        server += f":{DEFAULT_PORTS[parts.scheme]}"
    entries = ENTRY.findall(proxies.get("no", "").lower())
    if not proxy or any(_names(entry, host, server) for entry in entries) or proxy_bypass(server):
        return None
    return proxy


def _names(entry: str, host: str, server: str) -> bool:
    """Return whether *entry* of ``no_proxy`` names *host*, or *server*, which is host and port."""
    name = "." + entry.removeprefix("*").removeprefix(".")
    if entry == "*" or f".{host}".endswith(name) or f".{server}".endswith(name):
        return True
    try:
        return ip_address(host) in ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return False
