"""
Limits of clients: buckets on a clock that is set, then a real service; priorities of clients;
admission by them.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from typing import Any

import pytest
from pydantic import ValidationError

from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Called
from stepspec.orchestrator.ledger import Ledger
from stepspec.service.admission import Admission, Clients
from stepspec.service.errors import ApiError
from stepspec.service.records import ServiceRequest
from stepspec.service.settings import ServiceSettings
from stepspec.settings import load

from ...fakes import run
from ..served import chosen, serving, until


class Clock:
    """A clock that stands still until it is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Allowance:
    """What a client with these *limits* has left."""

    def __init__(self, clock: Clock, **limits: int) -> None:
        self._clients = Clients(chosen(clients={"alice": {"key": "k", **limits}}), clock)

    def admit(self) -> None:
        self._clients.admit(
            ServiceRequest(
                "r",
                "POST",
                "/v1/completions",
                {},
                client="alice",
            )
        )


def refused(left: Allowance) -> ApiError:
    with pytest.raises(ApiError) as caught:
        left.admit()
    return caught.value


def admitted_until_refused(left: Allowance) -> tuple[int, int]:
    """Return how many requests are admitted now, and the seconds of the refusal after them."""
    for count in range(100):
        try:
            left.admit()
        except ApiError as exc:
            return count, int(exc.all_headers["Retry-After"])
    raise AssertionError("there is no limit")


def test_a_bucket_holds_one_minute_and_fills_continuously() -> None:
    clock = Clock()
    left = Allowance(clock, requests_per_minute=60)
    assert admitted_until_refused(left) == (60, 1)
    clock.now += 2.5
    assert admitted_until_refused(left) == (2, 1)
    clock.now += 0.5
    assert admitted_until_refused(left) == (1, 1)
    clock.now += 1000
    assert admitted_until_refused(left) == (60, 1)


def test_requests_beyond_the_limit_are_refused_for_the_true_time() -> None:
    clock = Clock()
    left = Allowance(clock, requests_per_minute=3)
    for _ in range(3):
        left.admit()
    error = refused(left)
    assert (error.status, error.code, error.retry) == (429, "rate_limit_exceeded", True)
    assert (
        error.message == "client 'alice' has used up its 3 requests per minute: try again in 20 s"
    )
    assert error.all_headers["Retry-After"] == "20"
    clock.now += 19.9
    assert refused(left).all_headers["Retry-After"] == "1"
    clock.now += 0.1
    left.admit()
    refused(left)


@pytest.mark.parametrize("key", ["first", "second", "a-key", "fir", "first-and-more", "", "\xe9"])
@pytest.mark.parametrize("name", ["authorization", "api_key"])
def test_every_key_is_compared_in_constant_time(
    monkeypatch: pytest.MonkeyPatch, key: str, name: str
) -> None:
    keys = {"first": "", "second": "", "a-key": "alice"}
    clients = Clients(chosen(keys="first,second", clients={"alice": {"key": "a-key"}}))
    compared: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    headers = {
        "authorization": None,
        "api_key": None,
        name: f"Bearer {key}" if name == "authorization" else key,
    }
    assert clients.find(**headers) == keys.get(key)
    # Digests of one length, whatever the lengths of the keys; both headers are compared, whichever
    # is there.
    assert compared == [(32, 32)] * (2 * len(keys))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"clients": {"a b": {"key": "x"}}}, "should match pattern"),
        ({"clients": {"a": {"key": ""}}}, "a key is empty"),
        ({"clients": {"a": {"key": " "}}}, "a key is empty"),
        ({"clients": {"a": {"key": "x"}, "b": {"key": "x"}}}, "there twice"),
        ({"keys": "x", "clients": {"a": {"key": "x"}}}, "there twice"),
        ({"clients": {"a": {"key": "x", "request_per_minute": 1}}}, "Extra inputs"),
        ({"clients": {"a": {"key": "x", "requests_per_minute": 0}}}, "greater than 0"),
        ({"clients": {"a": {"key": "x", "priority": 2000}}}, "less than or equal to 1000"),
        ({"clients": {"a": {}}}, "Field required"),
    ],
)
def test_wrong_clients_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        chosen(**values)


@pytest.mark.parametrize("value", ["", " , "])
def test_a_variable_of_keys_without_a_key_is_refused(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSPEC_SERVICE__KEYS", value)
    with pytest.raises(ConfigurationError, match=r"STEPSPEC_SERVICE__KEYS.* no key in it"):
        load(small="http://a", large="http://b")


def test_clients_come_from_variables_and_open_a_public_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("KEY", "secret"), ("REQUESTS_PER_MINUTE", "7"), ("PRIORITY", "-3")):
        monkeypatch.setenv(f"STEPSPEC_SERVICE__CLIENTS__ALICE__{name}", value)
    # never bound
    service = load(small="http://a", large="http://b", service={"host": "0.0.0.0"}).service
    alice = service.clients["alice"]
    assert (alice.key.get_secret_value(), alice.requests_per_minute, alice.priority) == (
        "secret",
        7,
        -3,
    )
    assert "secret" not in repr(service)


LIMITED = chosen(
    keys=("open",),
    clients={
        "alice": {"key": "a", "requests_per_minute": 2},
        "bob": {"key": "b", "priority": 5},
    },
)


def by(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_requests_per_minute_of_a_service() -> None:
    async with serving(LIMITED) as served:
        replies = [await served.chat(headers=by("a")) for _ in range(3)]
        listing = await served.get("/v1/models", **by("a"))
        others = [await served.chat(headers=by("open")) for _ in range(3)]
        metrics = (await served.get("/metrics")).body.decode()
        names = [request.client for request in served.recorded.requests]
    assert [reply.status for reply in replies] == [200, 200, 429]
    assert 0 < int(replies[2].headers["Retry-After"]) <= 30
    assert "alice" in replies[2].error["message"]
    assert listing.status == 200
    assert [reply.status for reply in others] == [200] * 3
    assert 'stepspec_client_requests_total{client="alice",status="429"} 1.0' in metrics
    assert names == ["alice"] * 4 + [""] * 3 + [""]


async def test_the_tokens_of_a_cancelled_run_are_counted() -> None:
    async with serving(LIMITED) as served:
        served.large.gate = asyncio.Semaphore(5)
        asking = asyncio.create_task(served.chat(method="large", headers=by("b")))
        await until(lambda: served.large.gate is not None and served.large.gate.locked())
        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: served.recorded.requests)
        request = served.recorded.requests[0]
        calls = [event for event in served.recorded.events if isinstance(event, Called)]
        metrics = (await served.get("/metrics")).body.decode()
    assert request.status == 499
    account = Ledger.of(calls).large
    counted = re.findall(
        r'stepspec_tokens_total{fate=".*",model="large",role="large"} (.*)', metrics
    )
    assert sum(map(float, counted)) == account.written + account.judging > 0


@pytest.mark.parametrize(("asked", "run_priority"), [(None, 5), (9, 9), (5, 5)])
async def test_a_client_has_its_priority_or_a_worse_one(
    asked: int | None, run_priority: int
) -> None:
    async with serving(LIMITED) as served:
        reply = await served.chat(
            headers=by("b"), stepspec={} if asked is None else {"priority": asked}
        )
        assert reply.status == 200
        sent = {
            body["priority"] // 2**32 for _, body in served.small.requests if "priority" in body
        }
    assert sent == {run_priority}


async def test_a_better_priority_than_the_keys_is_refused() -> None:
    async with serving(LIMITED) as served:
        reply = await served.chat(headers=by("b"), stepspec={"priority": 4})
        for wrong in (4, "1", 2000):
            body = {"model": "huge", "prompt": "x", "priority": wrong}
            forwarded = await served.post("/v1/completions", body, **by("b"))
            assert (forwarded.status, forwarded.error["param"]) == (400, "priority")
    assert (reply.status, reply.error["param"]) == (400, "stepspec.priority")
    assert "the API key allows 5 at best" in reply.error["message"]


async def test_forwarded_requests_have_the_priority_of_runs() -> None:
    async with serving(LIMITED) as served:
        fields = {"model": "huge", "prompt": "x", "max_tokens": 1, "logprobs": 0}
        for key, more in (
            ("b", {}),
            ("b", {"priority": 7}),
            ("open", {"priority": 3}),
            ("open", {}),
        ):
            await served.post("/v1/completions", {**fields, **more}, **by(key))
        sent = [
            body.get("priority")
            for path, body in served.large.requests
            if path == "/v1/completions"
        ]
    assert [value // 2**32 for value in sent[:2] if value is not None] == [5, 7]
    assert sent[2:] == [3, None]


def admitted(priorities: list[int], *, slots: int = 1) -> list[int]:
    """
    Let requests with these *priorities* arrive at once behind a running one; return the order of
    their starts.
    """

    async def main() -> list[int]:
        gate = Admission(ServiceSettings(max_running=slots, max_waiting=99, max_wait=1000))
        order = list[int]()

        async def visit(index: int, priority: int) -> None:
            async with gate.enter(priority):
                order.append(index)
                await asyncio.sleep(1)

        await asyncio.gather(*(visit(*each) for each in enumerate([0, *priorities])))
        assert (gate.running, gate.waiting) == (0, 0)
        return order[1:]

    return run(main())[0]


def test_better_priorities_are_admitted_first_and_equal_ones_in_order() -> None:
    assert admitted([2, 1, 1]) == [2, 3, 1]


def test_every_fourth_slot_goes_to_the_request_that_has_waited_longest() -> None:
    assert admitted([9, 0, 0, 0, 0, 0]) == [2, 3, 4, 1, 5, 6]


def test_a_request_that_is_cancelled_as_its_slot_comes_passes_it_on() -> None:
    async def main() -> int:
        gate = Admission(ServiceSettings(max_running=1, max_waiting=9, max_wait=1000))

        async def visit(place: int) -> None:
            async with gate.enter():
                await asyncio.sleep(1)
            if place == 0:
                visits[1].cancel()  # it has got the slot, and has yet to wake up

        visits = [asyncio.create_task(visit(place)) for place in range(3)]
        await asyncio.wait(visits)
        await gate.idle()
        return gate.running + gate.waiting

    assert run(main()) == (0, 2)
