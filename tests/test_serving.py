"""The command `serve`: what it needs, and its errors at the start."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Generator, Sequence
from socket import socket

import pytest

from stepspec import Solver, service_factory
from stepspec.orchestrator.errors import ConfigurationError, install_command
from stepspec.service.http.app import ServiceServer, listen
from stepspec.service.settings import ServiceSettings
from stepspec.settings import Settings

from .stand_in import FakeVllm
from .test_cli import call

pytestmark = pytest.mark.usefixtures("nowhere")


def test_a_port_that_is_taken_is_named() -> None:
    with (
        listen("127.0.0.1", 0) as taken,
        pytest.raises(ConfigurationError, match="choose another with --port"),
    ):
        listen("127.0.0.1", taken.getsockname()[1])


def test_without_the_extra_the_error_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec

    def without(name: str) -> object:
        return None if name == "uvicorn" else find(name)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert call("serve") == 2
    assert f"needs uvicorn: {install_command('serve')}" in capfd.readouterr().err


@pytest.mark.parametrize(("name", "warns"), [("big", False), ("large", True), ("auto", True)])
async def test_a_model_served_under_the_name_of_a_method_causes_a_log_line(
    name: str, warns: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    async with (
        FakeVllm(("So", "\n\n"), names=("tiny",)).serve("small") as small,
        FakeVllm(("So", "\n\n"), names=(name,)).serve("large") as large,
        service_factory.built(Solver(small, large), ServiceSettings(log_format="json")),
    ):
        printed = capfd.readouterr()
    assert ("served_as_a_method" in printed.out + printed.err) == warns


@pytest.fixture
def thawed() -> Generator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
async def test_what_stays_for_good_is_hidden_from_garbage_collections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen: list[int] = []

    async def serve(self: ServiceServer, sockets: Sequence[socket]) -> None:
        frozen.append(gc.get_freeze_count())

    monkeypatch.setattr(ServiceServer, "serve", serve)
    async with (
        FakeVllm(("So", "\n\n")).serve("small") as small,
        FakeVllm(("So", "\n\n")).serve("large") as large,
    ):
        await service_factory.serve(Solver(small, large), ServiceSettings(port=0))
        gc.unfreeze()
        async with service_factory.opened(Settings(small=small, large=large)):
            frozen.append(gc.get_freeze_count())
    assert min(frozen) > 10_000
    assert len(frozen) == 2
