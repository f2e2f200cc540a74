"""
What a user reads when a server cannot be reached, or is another kind of server: on real sockets.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.chain import Chain
from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.errors import (
    ConfigurationError,
    EndpointError,
    EndpointRejected,
    EndpointUnreachable,
    MalformedReply,
    ModelGone,
)
from stepspec.orchestrator.http.client import Connection
from stepspec.orchestrator.http.failures import no_connection

from ...stand_in import FakeVllm

SCRIPT = ("So", " it", " is.", "\n\n", "</think>")
LEAKS = re.compile(
    r"ssl:|Client\w*Error|Errno|_ssl\.c|aiohttp|ConnectionKey|Traceback|RequestInfo|<\w+ "
)


async def failure(url: str, **settings: Any) -> EndpointError:
    """
    Return the error of connecting to *url*, which has one line and none of the library's words.
    """
    with pytest.raises(EndpointError) as caught:
        async with VllmEndpoint(
            Endpoint.model_validate({"role": "large", "url": url, "retries": 0, **settings})
        ):
            pytest.fail("connected")
    message = str(caught.value)
    assert not LEAKS.search(message), message
    assert "\n" not in message
    return caught.value


@asynccontextmanager
async def saying(content: bytes) -> AsyncGenerator[str]:
    """Answer every connection with *content*, and close it; yield the address."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(content)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def site(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], tls: Any = None
) -> AsyncGenerator[str]:
    """Answer every path with *handler*; yield the address."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    sock = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, sock, ssl_context=tls).start()
    try:
        yield f"127.0.0.1:{sock.getsockname()[1]}"
    finally:
        await runner.cleanup()


def answering(text: str, status: int = 200, kind: str = "application/json") -> Any:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=text, status=status, content_type=kind)

    return handler


def unused_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        return int(taken.getsockname()[1])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_refused_connection(host: str) -> None:
    port = unused_port()
    error = await failure(f"http://{host}:{port}/v1")
    assert isinstance(error, EndpointUnreachable)
    assert (
        error.cause
        == f"no connection: nothing listens at {host}:{port} (connection refused); start the"
        " server, wait until it has loaded its model, or correct the port"
    )


async def test_an_unknown_host() -> None:
    error = await failure("http://stepspec.invalid:8000/v1")
    assert (
        error.cause
        == "no connection: no address is known for the host 'stepspec.invalid'; is the name in the"
        " URL right?"
    )


async def test_a_host_that_does_not_answer() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        port = silent.getsockname()[1]
        filling = [socket.socket() for _ in range(4)]
        for each in filling:  # Connections beyond the backlog are neither accepted nor refused.
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        error = await failure(f"http://127.0.0.1:{port}", deadlines={"connect": 0.2})
        for each in filling:
            each.close()
    assert (
        "did not accept it within 0.2 s (deadlines.connect); is the host up, and does a firewall"
        in error.cause
    )


@pytest.mark.parametrize(
    ("content", "scheme", "words"),
    [
        (
            b"",
            "http",
            "closed it before the answer; did the server die, or does it expect the other of"
            " http:// and https://?",
        ),
        (
            b"",
            "https",
            "closed it before the answer; did the server die, or does it expect the other of"
            " http:// and https://?",
        ),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "http", "does not speak HTTP; is the port right?"),
        (
            *(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc", "http"),
            "the connection broke before the end of the answer: did the server die?",
        ),
    ],
)
async def test_a_server_that_says_too_little_or_something_else(
    content: bytes, scheme: str, words: str
) -> None:
    async with saying(content) as address:
        assert (await failure(f"{scheme}://{address}")).cause.endswith(words)


async def test_https_for_a_server_without_tls() -> None:
    async with FakeVllm(SCRIPT).serve() as server:
        error = await failure(server.url.replace("http:", "https:"))
    assert error.cause.startswith("no connection: no TLS is spoken at 127.0.0.1:")
    assert error.cause.endswith("write http:// instead of https://")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    A certificate for the name localhost that no authority has signed, with its key in the same
    file.
    """
    folder = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -days 2 -subj"
        " /CN=localhost"
    )
    names = ("-addext", "subjectAltName=DNS:localhost")
    subprocess.run([*command.split(), *names], cwd=folder, check=True, capture_output=True)
    (folder / "both").write_text((folder / "cert").read_text() + (folder / "key").read_text())
    return folder / "both"


async def test_certificates(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    async with site(answering('{"data": []}'), tls) as address:
        port = address.rpartition(":")[2]
        error = await failure(f"https://localhost:{port}")
        assert "the TLS certificate of localhost is refused (self" in error.cause
        assert "SSL_CERT_FILE may name an authority to trust" in error.cause
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        error = await failure(f"https://127.0.0.1:{port}")
        assert "(IP address mismatch, certificate is not valid for '127.0.0.1')" in error.cause
        error = await failure(f"https://localhost:{port}")
        assert "no model at all is served here" in error.cause
        error = await failure(f"http://127.0.0.1:{port}")
        assert "does it expect the other of http:// and https://?" in error.cause
        monkeypatch.setenv("SSL_CERT_FILE", "gone")
        error = await failure(f"https://localhost:{port}")
        assert (
            error.cause
            == "no connection: no certificates are where SSL_CERT_FILE or SSL_CERT_DIR says"
        )


async def test_the_proxy_is_named_with_the_way_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    proxy = f"http://127.0.0.1:{unused_port()}"
    monkeypatch.setenv("http_proxy", proxy.replace("//", "//user:secret@"))
    error = await failure("http://model.example:8000")
    place = proxy.removeprefix("http://")
    assert error.cause.startswith(
        f"no connection: nothing listens at {place} (connection refused); the environment names"
        " this proxy"
    )
    assert error.cause.endswith("add model.example to no_proxy if the server needs no proxy")
    monkeypatch.setenv("http_proxy", proxy.removeprefix("http://"))  # as other programs take it
    assert (await failure("http://model.example:8000")).cause == error.cause
    async with site(answering("no")) as address:
        monkeypatch.setenv("https_proxy", f"http://{address}")
        error = await failure("https://model.example:8000")
        # aiohttp knows no CONNECT
        assert "the proxy answers with HTTP 404; the environment names this proxy" in error.cause


async def test_a_proxy_that_is_no_http_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "socks5h://user:secret@127.0.0.1:1080")
    with pytest.raises(
        ConfigurationError,
        match=r"^http_proxy names a SOCKS proxy.* or add model.example to no_proxy$",
    ):
        Connection(Endpoint(role="large", url="http://model.example:8000"))
    monkeypatch.setenv("no_proxy", "model.example")
    assert Connection(Endpoint(role="large", url="http://model.example:8000")).proxy is None


@pytest.mark.parametrize(("key", "status"), [("right", 401), ("", 405)])
async def test_a_redirection_that_loses_the_key_or_the_body_names_the_url_to_set(
    key: str, status: int
) -> None:
    """As of a gateway that leads from http:// to https://."""
    async with FakeVllm(SCRIPT, key=key).serve() as server:

        async def away(request: web.Request) -> web.Response:
            raise web.HTTPMovedPermanently(f"{server.url}{request.path}")

        async with site(away) as address:
            error = await failure(f"http://{address}/v1", api_key=key or None)
    moved = (
        f"this URL redirects to {server.url}, which refuses the request (HTTP {status}): set that"
        " as url"
    )
    assert (error.cause, error.status) == (moved, status)


async def test_endless_redirections() -> None:
    async def around(request: web.Request) -> web.Response:
        raise web.HTTPFound(request.path)

    async with site(around) as address:
        assert "redirects to no page" in (await failure(f"http://{address}")).cause


PAGE = (
    "<!doctype html>\n<html><head><title>Welcome to\n nginx</title></head><body>...</body></html>"
)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (PAGE, "a web page ('Welcome to nginx'), not JSON; is this the URL of a vLLM server?"),
        *(
            (reply, "no list of models")
            for reply in ('{"models": []}', '{"data": [{"name": "a"}]}', '{"data": ["a"]}')
        ),
    ],
)
async def test_a_site_of_another_kind(reply: str, words: str) -> None:
    async with site(
        answering(reply, kind="text/html" if reply == PAGE else "application/json")
    ) as address:
        error = await failure(f"http://{address}")
    assert isinstance(error, MalformedReply)
    assert error.cause.startswith(words)


async def test_a_path_too_much() -> None:
    async with FakeVllm(SCRIPT).serve() as server:
        error = await failure(f"{server.url}/v1/models")
    assert isinstance(error, EndpointRejected)
    assert "at /v1/models: no OpenAI-compatible server is at this URL" in error.cause
    assert "such as http://localhost:8000/v1?" in error.cause


async def test_a_server_of_the_openai_routes_alone() -> None:
    async def some(request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "other"}]})
        return web.json_response({"error": "unknown route"}, status=404)

    async with site(some) as address:
        error = await failure(f"http://{address}")
    assert error.cause.startswith(
        "HTTP 404: unknown route, at /tokenize, which every vLLM server has"
    )
    assert "Let it forward all paths" in error.cause


async def test_keys() -> None:
    async with FakeVllm(SCRIPT, key="right").serve() as server:
        error = await failure(server.url)
        assert (
            error.cause
            == "a key is needed, and none is set (HTTP 401: Unauthorized); set api_key in"
            " [large], or STEPSPEC_LARGE__API_KEY"
        )
        error = await failure(server.url, api_key="wrong")
        assert (
            error.cause
            == "the key was refused (HTTP 401: Unauthorized); set api_key in [large], or"
            " STEPSPEC_LARGE__API_KEY"
        )


async def test_a_model_that_is_not_served() -> None:
    async with FakeVllm(SCRIPT, names=("one", "two")).serve() as server:
        error = await failure(server.url, model="three")
    assert error.cause.endswith(
        "served: 'one', 'two'; name one of them as model in [large], or leave model out"
    )


async def test_a_model_that_is_replaced_during_a_run() -> None:
    server = FakeVllm(SCRIPT)
    async with server.serve() as settings, VllmEndpoint(settings) as endpoint:
        server.names = ("other",)
        with pytest.raises(
            ModelGone, match=r"`fake` does not exist; does the server serve another model now\?"
        ):
            await endpoint.model().write(Chain.of("What?"))


async def test_a_model_without_a_chat_template() -> None:
    class Base(FakeVllm):
        async def tokenize(self, request: web.Request) -> web.Response:
            if "messages" in await request.json():
                complaint = (
                    "As of transformers v4.44, default chat template is no longer allowed, so you"
                    " must provide a chat template if the tokenizer does not define one."
                )
                return web.json_response({"error": {"message": complaint, "code": 400}}, status=400)
            return await super().tokenize(request)

    async with Base(SCRIPT).serve() as server:
        error = await failure(server.url)
    assert error.cause.startswith(
        "the model has no chat template: start vLLM with --chat-template FILE"
    )


@pytest.mark.parametrize(
    ("exc", "words"),
    [
        (OSError(113, "No route to host"), "no route to host at host:80"),
        (OSError(24, "Too many open files"), "too many open files at host:80"),
        (aiohttp.InvalidURL("x"), "redirects to no page"),
        (aiohttp.ClientError("anything"), "the request failed at host:80"),
    ],
)
def test_causes_that_are_hard_to_make(exc: Exception, words: str) -> None:
    message = no_connection(exc, "http://host", 5.0)
    assert words in message
    assert not LEAKS.search(message)
