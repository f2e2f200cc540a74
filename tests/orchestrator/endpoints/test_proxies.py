"""Which servers are reached without the proxy that the environment names."""

from __future__ import annotations

import pytest

from stepspec.orchestrator.endpoints.settings import Address
from stepspec.orchestrator.http.client import Connection

PROXY = "http://proxy:3128"


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
    ],
)
async def test_no_proxy_takes_the_forms_that_other_clients_take(
    listed: str, url: str, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", PROXY)
    monkeypatch.setenv("no_proxy", listed)
    connection = Connection(Address(role="large", url=url))
    assert connection.proxy == (None if direct else PROXY)
