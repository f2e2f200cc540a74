"""
The proxy of a request: ``http_proxy``, ``https_proxy``, ``all_proxy`` and ``no_proxy``.

``no_proxy`` is read as curl, Go and Kubernetes' tools read it. An entry is a name with all names
below it (``example.com``, ``.svc``, ``*.svc``), an address (``::1``, ``[::1]``), or a block of
addresses (``10.0.0.0/8``, ``fd00::/8``), each with or without a port; or ``*``. Addresses are
compared by value, an address without a zone in every zone. The image's health check uses this
module, too, which therefore imports nothing of stepspec.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

ENTRY = re.compile(r"[^,\s]+")
WITH_PORT = re.compile(r"(?P<name>[^:]*|\[[^][]*\][^][:]*):(?P<port>\d+)")
DEFAULT_PORTS: Mapping[str, int] = {"http": 80, "https": 443}


def proxy_of(url: str) -> str | None:
    """Return the proxy for *url* that the environment names, as it is written there, or None."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    host = parts.hostname or ""
    port = parts.port or DEFAULT_PORTS[parts.scheme]
    entries = ENTRY.findall(proxies.get("no", "").lower())
    if not proxy or any(_names(entry, host, port) for entry in entries):
        return None
    if not entries and proxy_bypass(f"{host}:{port}"):  # by the settings of a desktop
        return None
    return proxy


def _names(entry: str, host: str, port: int) -> bool:
    """Return whether *entry* of ``no_proxy`` names *host* and *port*."""
    name = entry
    with_port = WITH_PORT.fullmatch(entry)
    if with_port:
        name = with_port["name"]
        if int(with_port["port"]) != port:
            return False
    try:
        address = ip_address(_plain(host))
    except ValueError:
        below = "." + name.removeprefix("*").strip(".")
        return name == "*" or f".{host.rstrip('.')}".endswith(below)
    return name == "*" or _covers(name, address)


def _covers(name: str, address: IPv4Address | IPv6Address) -> bool:
    """Return whether *name* is *address*, or a block of addresses with it."""
    try:
        block = ip_network(_plain(name), strict=False)
    except ValueError:
        return False
    if isinstance(address, IPv4Address):
        return address in block
    if isinstance(block.network_address, IPv4Address):
        return address.ipv4_mapped is not None and address.ipv4_mapped in block
    return address in block and block.network_address.scope_id in (None, address.scope_id)


def _plain(address: str) -> str:
    """Return *address* of a URL as Python spells it: without brackets, with a bare zone."""
    return re.sub(r"[\[\]]", "", address).replace("%25", "%")
