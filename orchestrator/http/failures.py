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

PROXY_CURE = (
    "; the environment names this proxy (http_proxy or https_proxy): add {host} to no_proxy if the"
    " server needs no proxy"
)
REASONS = (
    (FileNotFoundError, "no certificates are where SSL_CERT_FILE or SSL_CERT_DIR says"),
    (
        ssl.SSLCertVerificationError,
        "the TLS certificate of {host} is refused ({words}); SSL_CERT_FILE may name an authority to"
        " trust",
    ),
    (ssl.SSLError, "no TLS is spoken at {place}; write http:// instead of https://"),
    (
        socket.gaierror,
        "no address is known for the host {host!r}; is the name in the URL right?",
    ),
    (
        TimeoutError,
        "{place} did not accept it within {seconds:g} s (deadlines.connect); is the host up, and"
        " does a firewall block the port?",
    ),
    (
        ConnectionRefusedError,
        "nothing listens at {place} (connection refused); start the server, wait until it has"
        " loaded its model, or correct the port",
    ),
    (
        (aiohttp.ServerDisconnectedError, ConnectionError),
        "{place} closed it before the answer; did the server die, or does it expect the other of"
        " http:// and https://?",
    ),
    (
        (aiohttp.TooManyRedirects, aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError),
        "{place} redirects to no page; is this the URL of a vLLM server?",
    ),
    (aiohttp.ClientHttpProxyError, "the proxy answers with HTTP {words}" + PROXY_CURE),
    (
        (aiohttp.ClientResponseError, aiohttp.ClientPayloadError),
        "what listens at {place} does not speak HTTP; is the port right?",
    ),
)
"""Why a request failed, by the exception: the first row whose class fits."""
OTHER_REASON = "{words} at {place}; is the server running, and is the URL right?"
"""Why a request failed with any other exception."""


def shortage(exc: BaseException) -> str:
    """Return what this machine lacks if that is why a request failed with *exc*, else ""."""
    seen: BaseException | None = exc
    while seen is not None:
        for cause in (seen, getattr(seen, "os_error", None)):
            if isinstance(cause, OSError) and cause.errno in SHORTAGES:
                return SHORTAGES[cause.errno]
        seen = seen.__cause__ or seen.__context__
    return ""


def no_connection(exc: Exception, url: str, seconds: float) -> str:
    """
    Return why a request to *url* failed before its answer, with the exception *exc*.

    *seconds* is the deadline for a connection.
    """
    parts = urlsplit(url)
    place = f"{parts.hostname}:{parts.port or DEFAULT_PORTS[parts.scheme]}"
    cause = exc
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        cause = exc.certificate_error
    elif isinstance(exc, aiohttp.ClientConnectorError):
        cause = exc.os_error
        place = f"{exc.host}:{exc.port}"  # of the proxy, if there is one
    elif isinstance(exc, aiohttp.ClientOSError) and exc.errno:
        cause = OSError(exc.errno, "")  # of the class for this number
    words = "the request failed"
    if isinstance(cause, ssl.SSLCertVerificationError):
        words = cause.verify_message.rstrip(".")
    elif isinstance(cause, OSError) and cause.errno and cause.errno > 0:
        words = os.strerror(cause.errno).lower()
    elif isinstance(cause, aiohttp.ClientHttpProxyError):
        words = str(cause.status)
    text = next((text for kinds, text in REASONS if isinstance(cause, kinds)), OTHER_REASON)
    reason = text.format(
        host=parts.hostname,
        place=place,
        seconds=seconds,
        words=words,
    )
    if isinstance(exc, aiohttp.ClientProxyConnectionError):
        reason = reason.partition(";")[0] + PROXY_CURE.format(host=parts.hostname)
    return f"no connection: {reason}"
