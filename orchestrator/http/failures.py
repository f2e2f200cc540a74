"""
Why a server cannot be reached, in plain words and with the cure. Pure: no I/O.

The texts of the HTTP client are not shown: they name its own settings and objects.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from urllib.parse import urlsplit

import aiohttp

DEFAULT_PORTS = {"http": 80, "https": 443}

SHORTAGES = {
    errno.EMFILE: "this process has too many open files: raise the limit (ulimit -n)",
    errno.ENFILE: "this machine has too many open files: raise fs.file-max",
    errno.ENOBUFS: "this machine has no memory left for connections",
    errno.ENOMEM: "this machine has no memory left",
    errno.EADDRNOTAVAIL: "this machine has no free port left for a connection",
}
"""What this machine lacks, by the number of the operating system's error."""


def shortage(exc: BaseException) -> str:
    """Return what this machine lacks if that is why a request failed with *exc*, else ""."""
    seen: BaseException | None = exc
    while seen is not None:
        for cause in (seen, getattr(seen, "os_error", None)):
            if isinstance(cause, OSError) and cause.errno in SHORTAGES:
                return SHORTAGES[cause.errno]
        seen = seen.__cause__ or seen.__context__
    return ""


def no_connection(
    exc: Exception,
    url: str,
    seconds: float,
    proxy: str | None = None,
) -> str:
    """
    Return why a request to *url* failed before its answer, with the exception *exc*.

    *seconds* is the deadline for a connection. *proxy* is the URL of the proxy that the environment
    names, if it names one.
    """
    if not isinstance(exc, aiohttp.ClientHttpProxyError | aiohttp.ClientProxyConnectionError):
        return f"no connection: {_reason(exc, url, seconds)}"
    scheme, _, rest = (proxy or "").partition("//")
    shown = f"{scheme}//{rest.rpartition('@')[2]}"  # without a name and a password
    around = (
        "the environment names it (http_proxy, https_proxy or all_proxy): add"
        f" {urlsplit(url).hostname} to no_proxy if the server needs no proxy"
    )
    if isinstance(exc, aiohttp.ClientHttpProxyError):
        return f"no connection: the proxy {shown} answers with HTTP {exc.status}; {around}"
    reason = _reason(exc.os_error, proxy or url, seconds)
    return f"no connection to the proxy {shown}: {reason.partition(';')[0]}; {around}"


def _reason(exc: Exception, url: str, seconds: float) -> str:
    parts = urlsplit(url)
    host = parts.hostname
    place = f"{host}:{parts.port or DEFAULT_PORTS[parts.scheme]}"
    cause = exc
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        cause = exc.certificate_error
    elif isinstance(exc, aiohttp.ClientConnectorError):
        cause = exc.os_error
    match cause:
        case FileNotFoundError():
            return "no certificates are where SSL_CERT_FILE or SSL_CERT_DIR says"
        case ssl.SSLCertVerificationError():
            why = cause.verify_message.rstrip(".")
            return (
                f"the TLS certificate of {host} is refused ({why}); SSL_CERT_FILE may name an"
                " authority to trust"
            )
        case ssl.SSLError():
            return f"no TLS is spoken at {place}; write http:// instead of https://"
        case socket.gaierror():
            return f"no address is known for the host {host!r}; is the name in the URL right?"
        case TimeoutError():
            return (
                f"{place} did not accept it within {seconds:g} s (deadlines.connect); is the"
                " host up, and does a firewall block the port?"
            )
        case ConnectionRefusedError():
            return (
                f"nothing listens at {place} (connection refused); start the server, wait"
                " until it has loaded its model, or correct the port"
            )
        case (
            aiohttp.ServerDisconnectedError()
            | ConnectionError()
            | OSError(errno=errno.ECONNRESET | errno.EPIPE)
        ):
            scheme = "does it expect https://"
            if parts.scheme == "https":
                scheme = "does it speak no TLS (http://)"
            return f"{place} closed it before the answer; did the server die, or {scheme}?"
        case aiohttp.TooManyRedirects() | aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return f"{place} redirects to no page; is this the URL of a vLLM server?"
        case aiohttp.ClientResponseError() | aiohttp.ClientPayloadError():
            return f"what listens at {place} does not speak HTTP; is the port right?"
        case OSError(errno=int(number)) if number > 0:
            return (
                f"{os.strerror(number).lower()} at {place}; is the server running, and is the"
                " URL right?"
            )
        case _:
            return f"the request to {place} failed; is the server running, and is the URL right?"
