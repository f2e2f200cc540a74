"""Which servers are reached without the proxy that the environment names."""

from __future__ import annotations

import pytest

from stepspec.orchestrator.endpoints.settings import Address
from stepspec.orchestrator.http.client import Connection

PROXY = "http://proxy:3128"


@pytest.mark.parametrize("variable", ["no_proxy", "NO_PROXY"])
@pytest.mark.parametrize(
    ("listed", "url", "direct"),
    [
        ("10.0.0.0/8", "http://11.1.2.3:8000", False),
        ("[::1]", "http://[::1]:8000", True),
        ("fd00::/8", "http://[fe80::7]:8000", False),
        ("*.svc", "http://large.models.svc.example.com:8000", False),
        ("10.0.0.0/8", "http://large:8000", False),
        (".svc", "http://large.models.svc:8000", True),
        ("*", "http://large:8000", True),
        ("", "http://10.1.2.3:8000", False),
        # ports
        ("10.1.2.3:8000", "http://10.1.2.3:8000", True),
        ("10.1.2.3:8001", "http://10.1.2.3:8000", False),
        ("large:80", "https://large", False),
        ("*.svc:8000", "http://large.svc:8001", False),
        ("[::1]:8000", "http://[::1]:8000", True),
        ("[::1]:8001", "http://[::1]:8000", False),
        ("::1:8000", "http://[::1]:8000", False),
        ("fd12::7", "http://[fd12::17]:8000", False),
        ("0.0.0.0/0", "http://[fd12::7]:8000", False),
        ("::/0", "http://10.1.2.3:8000", False),
        ("10.1.2.3/32", "http://10.1.2.4:8000", False),
        ("10.0.0.0/33", "http://10.0.0.0:8000", False),
        ("1.2.3.4", "http://11.2.3.4:8000", False),
        ("[fe80::1%25eth0]:8000", "http://[fe80::1%25eth0]:8000", True),
        ("fe80::1%eth1", "http://[fe80::1%25eth0]:8000", False),
        # names
        ("example.com", "http://example.com", True),
        ("example.com", "http://a.example.com", True),
        ("example.com", "http://badexample.com", False),
        (".example.com", "http://a.b.example.com", True),
        ("..example.com", "http://a.example.com", True),
        ("EXAMPLE.com", "http://a.Example.COM", True),
        ("example.com.", "http://a.example.com.:8000", True),
        ("com", "http://example.com", True),
        ("example", "http://example.com", False),
        ("10.0.0.0/8", "http://10.0.0.0.example", False),
        # lists
        (" , ,large , ", "http://large:8000", True),
        ("*", "http://[::1]:8000", True),
        (".", "http://large:8000", False),
        ("*.", "http://large:8000", False),
        (":8000", "http://large:8000", False),
    ],
)
async def test_no_proxy_is_read_as_urllib_reads_it(
    listed: str, url: str, direct: bool, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", PROXY)
    monkeypatch.setenv("https_proxy", PROXY)
    monkeypatch.setenv(variable, listed)
    connection = Connection(Address(role="large", url=url))
    assert connection.proxy == (None if direct else PROXY)
