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
        ("10.0.0.0/8", "http://10.1.2.3:8000", True),
        ("10.0.0.0/8", "http://11.1.2.3:8000", False),
        ("127.0.0.0/8", "http://127.0.0.5:8000", True),
        ("::1", "http://[::1]:8000", True),
        ("[::1]", "http://[::1]:8000", True),
        ("fd00::/8", "http://[fd12::7]:8000", True),
        ("fd00::/8", "http://[fe80::7]:8000", False),
        ("*.svc", "http://large.models.svc:8000", True),
        ("*.svc", "http://large.models.svc.example.com:8000", False),
        ("a.example, 192.168.0.0/16", "http://192.168.7.1:8000", True),
        ("10.0.0.0/8", "http://large:8000", False),
        (".svc", "http://large.models.svc:8000", True),
        ("*", "http://large:8000", True),
        ("", "http://10.1.2.3:8000", False),
        # ports
        ("10.1.2.3:8000", "http://10.1.2.3:8000", True),
        ("10.1.2.3:8001", "http://10.1.2.3:8000", False),
        ("10.0.0.0/8:8000", "http://10.1.2.3:8000", True),
        ("large:80", "http://large", True),
        ("large:443", "https://large", True),
        ("large:80", "https://large", False),
        ("*.svc:8000", "http://large.svc:8000", True),
        ("*.svc:8000", "http://large.svc:8001", False),
        ("[::1]:8000", "http://[::1]:8000", True),
        ("[::1]:8001", "http://[::1]:8000", False),
        ("::1:8000", "http://[::1]:8000", False),
        # addresses by value
        ("0:0:0:0:0:0:0:1", "http://[::1]:8000", True),
        ("[0:0::1]:8000", "http://[::1]:8000", True),
        ("FD00::/8", "http://[fd12::7]:8000", True),
        ("fd12::7", "http://[FD12::0007]:8000", True),
        ("[fd00::]/8", "http://[fd12::7]:8000", True),
        ("[fd00::/8]", "http://[fd12::7]:8000", True),
        ("fd12::7", "http://[fd12::17]:8000", False),
        ("::/0", "http://[fd12::7]:8000", True),
        ("0.0.0.0/0", "http://10.1.2.3:8000", True),
        ("0.0.0.0/0", "http://[fd12::7]:8000", False),
        ("::/0", "http://10.1.2.3:8000", False),
        ("10.1.2.3/8", "http://10.9.9.9:8000", True),
        ("10.1.2.3/32", "http://10.1.2.3:8000", True),
        ("10.1.2.3/32", "http://10.1.2.4:8000", False),
        ("10.0.0.0/255.0.0.0", "http://10.1.2.3:8000", True),
        ("10.0.0.0/33", "http://10.0.0.0:8000", False),
        ("10.0.0.0/8", "http://[::ffff:10.1.2.3]:8000", True),
        ("::ffff:10.1.2.3", "http://[::ffff:10.1.2.3]:8000", True),
        ("1.2.3.4", "http://11.2.3.4:8000", False),
        ("2.3", "http://10.1.2.3:8000", False),
        # zones
        ("fe80::/10", "http://[fe80::1%25eth0]:8000", True),
        ("fe80::/10", "http://[fe80::1%eth0]:8000", True),
        ("fe80::1", "http://[fe80::1%25eth0]:8000", True),
        ("fe80::1%eth0", "http://[fe80::1%25eth0]:8000", True),
        ("fe80::1%25eth0", "http://[fe80::1%25eth0]:8000", True),
        ("[fe80::1%25eth0]:8000", "http://[fe80::1%25eth0]:8000", True),
        ("fe80::1%eth1", "http://[fe80::1%25eth0]:8000", False),
        # names
        ("example.com", "http://example.com", True),
        ("example.com", "http://a.example.com", True),
        ("example.com", "http://badexample.com", False),
        (".example.com", "http://a.b.example.com", True),
        ("..example.com", "http://a.example.com", True),
        ("EXAMPLE.com", "http://a.Example.COM", True),
        ("example.com.", "http://example.com", True),
        ("example.com", "http://example.com.", True),
        ("example.com.", "http://a.example.com.:8000", True),
        (".svc.cluster.local.", "http://large.ns.svc.cluster.local:8000", True),
        ("com", "http://example.com", True),
        ("example", "http://example.com", False),
        ("10.0.0.0/8", "http://10.0.0.0.example", False),
        # lists
        (" , ,large , ", "http://large:8000", True),
        ("a b\tlarge", "http://large:8000", True),
        ("a,*", "http://large:8000", True),
        ("*", "http://[::1]:8000", True),
        (" * ", "http://10.1.2.3", True),
        (".", "http://large:8000", False),
        ("*.", "http://large:8000", False),
        (":8000", "http://large:8000", False),
    ],
)
async def test_no_proxy_takes_the_forms_that_other_clients_take(
    listed: str, url: str, direct: bool, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", PROXY)
    monkeypatch.setenv("https_proxy", PROXY)
    monkeypatch.setenv(variable, listed)
    connection = Connection(Address(role="large", url=url))
    assert connection.proxy == (None if direct else PROXY)
