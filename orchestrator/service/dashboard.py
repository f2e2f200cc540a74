"""The page, and what it asks for: a run whose every event is told, as lines of a trace."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from ..events import Drafted
from ..trace import Moment, dump
from . import openapi, payloads, run_requests
from .context import ServiceContext
from .errors import bad
from .middleware import ServiceRequest, service_request
from .payloads import json_response
from .run_requests import RunRequest, ServedModel
from .runs import VERIFIED, Item, RunResult, Runs, prime
from .schemas import LiveRequest
from .streaming import EVENT_STREAM, Line


def router(parts: ServiceContext) -> APIRouter:
    """Make the routes over *parts*."""
    routes = APIRouter()

    @routes.get("/", **openapi.PAGE)
    async def page() -> Response:
        """The page on which a run can be watched."""
        from .page import headers, html  # read from disk when somebody looks at it

        return HTMLResponse(html(), headers=headers())

    @routes.get("/live/methods", **openapi.LIVE_METHODS)
    async def methods() -> Response:
        """List the methods with their options, the default, and the names of the served models."""
        offer = parts.offer
        listed = [
            {"name": name, "about": one.about, "options": offer.options_of(name)} for name, one in offer.methods.items()
        ]
        served = {"small": offer.engine.small.name, "large": offer.engine.large.name}
        return json_response({"default": offer.policy, "methods": listed, "models": served})

    @routes.get("/live/trust", **openapi.LIVE_TRUST)
    async def trust() -> Response:
        """Tell whether the judge can be trusted still, as far as that is known."""
        return json_response(parts.offer.trust().told)

    @routes.post("/live", **openapi.LIVE)
    async def live(request: Request) -> Response:
        """Run a problem, telling every event as it happens, and its solution at the end."""
        visit = service_request(request)
        asked = run_requests.read(LiveRequest, await request.body())
        visit.model, visit.stream = parts.catalogue.label(asked.model), True
        method = parts.catalogue.find(asked.model)
        if isinstance(method, ServedModel):
            raise bad(f"{asked.model!r} is a served model, and only methods have events to tell", "model")
        return parts.attended(
            visit, LiveRun(parts, visit, run_requests.of_live(asked, method, parts.offer, parts.settings))
        )

    return routes


class LiveRun:
    """Tells one run, event by event."""

    def __init__(self, parts: ServiceContext, visit: ServiceRequest, order: RunRequest) -> None:
        self._runs = Runs(parts, visit, [order])

    async def __call__(self, line: Line) -> None:
        """Answer on *line*. Raise `Refusal` while nothing was sent; later failures end the stream."""
        try:
            async with self._runs.begun(stream=True) as feed:
                first = await prime(feed, self._runs.keep_alive, (Drafted, *VERIFIED))
                await line.start(EVENT_STREAM, last=payloads.FAILED_EVENT)
                await line.send(b"".join(map(self._told, first)))
                while self._runs.going:
                    news = await feed.next(self._runs.keep_alive)
                    await line.send(b"".join(map(self._told, news)) if news else payloads.KEEP_ALIVE)
                await line.end()
        except Exception as exc:
            await self._runs.fail(exc, line)

    def _told(self, item: Item) -> bytes:
        self._runs.take(item)
        if isinstance(item, RunResult):
            return b"event: solution\n" + payloads.event(payloads.solution(item.solution))
        return b"data: " + dump(Moment(item.at, item.event)) + b"\n"
