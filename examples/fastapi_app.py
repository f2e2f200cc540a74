"""
A FastAPI application with one `Solver`: POST /solve replies with the answer, POST /stream with
every verified step.

    export STEPSPEC_SMALL=http://localhost:8001/v1 STEPSPEC_LARGE=http://localhost:8002/v1
    uvicorn examples.fastapi_app:app
    curl -N localhost:8000/stream -H 'Content-Type: application/json' -d '{"text": "6 x 7?"}'

If the client disconnects, its run is cancelled, with all requests to the servers of the models.
"""

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel

from stepspec import Solution, Solver, StepspecError, events


class Problem(BaseModel):
    text: str


class Answer(BaseModel):
    answer: str
    accept_rate: float | None
    seconds: float

    @classmethod
    def of(cls, solution: Solution) -> "Answer":
        return cls(
            answer=solution.answer,
            accept_rate=solution.ledger.accept_rate,
            seconds=solution.seconds,
        )


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[dict[str, Solver]]:
    async with Solver() as solver:  # keeps its connections open for all requests
        yield {"solver": solver}


def get_solver(request: Request) -> Solver:
    solver: Solver = request.state.solver
    return solver


app = FastAPI(title="Solve problems with two models", lifespan=lifespan)
SharedSolver = Annotated[Solver, Depends(get_solver)]


@app.exception_handler(StepspecError)
async def explain(request: Request, error: StepspecError) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, status_code=502)


@app.post("/solve")
async def solve(problem: Problem, request: Request, solver: SharedSolver) -> Answer:
    async with solver.stream(problem.text) as run:
        async for _ in run:
            if await request.is_disconnected():  # FastAPI itself cancels streams only
                raise HTTPException(499, "the client closed the request")
    return Answer.of(run.solution)


@app.post("/stream", response_class=EventSourceResponse)
async def stream(problem: Problem, solver: SharedSolver) -> AsyncIterable[ServerSentEvent]:
    try:
        async with solver.stream(problem.text) as run:
            async for event in run:
                if isinstance(event, events.Committed):
                    step = {
                        "author": event.step.author,
                        "text": event.step.text,
                        "grade": event.score,
                    }
                    yield ServerSentEvent(data=step, event="step")
        yield ServerSentEvent(data=Answer.of(run.solution), event="answer")
    except StepspecError as error:
        yield ServerSentEvent(data=str(error), event="error")
