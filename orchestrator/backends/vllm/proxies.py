"""
The proxy of a request: ``http_proxy``, ``https_proxy``, ``all_proxy`` and ``no_proxy``.

``no_proxy`` is read as curl, Go and Kubernetes' tools read it. An entry is a name with all names
below it (``example.com``, ``.svc``, ``*.svc``), an address, or a block of addresses
(``10.0.0.0/8``, ``fd00::/8``), each with or without a port, or ``*``. The image's health check uses
this module, too, which therefore imports nothing of stepspec.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

ENTRIES = re.compile(r"[,\s]+")
DEFAULT_PORTS: Mapping[str, int] = {"http": 80, "https": 443}


def proxy_of(url: str) -> str | None:
    """Return the proxy for *url* that the environment names, as it is written there, or None."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or bypasses(url, proxies.get("no", "")) or proxy_bypass(parts.netloc):
        return None
    return proxy


def bypasses(url: str, no_proxy: str) -> bool:
    """Return whether an entry of *no_proxy* names the host of *url*."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or DEFAULT_PORTS.get(parts.scheme)
    return any(_names(entry.lower(), host, port) for entry in ENTRIES.split(no_proxy) if entry)


def _names(entry: str, host: str, port: int | None) -> bool:
    """Return whether *entry* names *host* at *port*."""
    if entry == "*":
        return True
    wanted, wanted_port = _divided(entry)
    if wanted_port is not None and wanted_port != port:
        return False
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        name = wanted.removeprefix("*").strip(".")
        return bool(name) and (host == name or host.endswith(f".{name}"))
    return _contains(wanted, address)


def _divided(entry: str) -> tuple[str, int | None]:
    """Divide an *entry* into its host, without brackets, and its port."""
    bracketed = re.fullmatch(r"\[([^\]]+)\](/\d+)?(?::(\d+))?", entry)
    if bracketed:
        host, length, port = bracketed.groups()
        return f"{host}{length or ''}", int(port) if port else None
    host, colon, port = entry.rpartition(":")
    if colon and port.isdecimal() and ":" not in host:
        return host, int(port)
    return entry, None


def _contains(block: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return whether *block*, an address or a block of addresses, has *address*."""
    try:
        network = ipaddress.ip_network(block, strict=False)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address in network or (mapped is not None and mapped in network)
