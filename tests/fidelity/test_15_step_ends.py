"""
Blank lines in fenced code, LaTeX environments and tables ended steps, and nothing else could be
made to end one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from stepspec import Endpoint, Sampling, Solver, policies
from stepspec.cli.eval import arm
from stepspec.orchestrator import Chain, Step, reason
from stepspec.orchestrator.backends.vllm import VllmEndpoint, VllmModel
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.concurrency import at_once
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Drafted, Event
from stepspec.orchestrator.step_ends import StepEnds
from stepspec.service.formats.schemas import StepspecOptions
from stepspec.settings import load

from ..contracts.model import kept_open
from ..fakes import Previous, ScriptedModel, run
from ..orchestrator.arms import PROBLEM
from ..stand_in import FakeVllm

STEPS = (
    "Let me code:\n\n",
    "```py\ndef f(x):\n    return x\n\n\n    # no\n\nprint(f(2))\n```\n\n",
    "So\n\\begin{align}\na &= 1\n\nb &= 2\n\\end{align}\n\n",
    "$$\nx\n\n= 2\n$$\n\n",
    "<table>\n<tr>1\n\n<tr>2\n</table>\n\n",
    "It follows that x = 2.\n\n",
    f"Done.\n{THINK_END}",
)
TEXT = "".join(STEPS)


def writes(role: Any) -> ScriptedModel:
    """A model that writes `TEXT`."""

    def script(previous: Previous) -> str:
        piece, found, _ = TEXT[len("".join(f"{part}\n\n" for part in previous)) :].partition("\n\n")
        return piece + found

    return ScriptedModel(role, script, judge=lambda chain, question: {"9": 0.5, "Yes": 0.5})


def policy(name: str, **options: Any) -> tuple[policies.Method, Any]:
    made = policies.make(name, writes("small"), writes("large"), **options)
    return policies.METHODS[name], made


STEPWISE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("small", {}),
    ("large", {}),
    ("specreason", {}),
    ("cascade", {}),
    ("choose", {}),
    ("glimpse", {}),
    ("random", {"p": 1.0}),
    ("random", {"p": 0.0}),
    ("lookahead-reasoning", {}),
    ("speculative-thinking", {}),
    ("bild", {"scale": "step", "rollback": 10, "fallback": 0.1}),
)


@pytest.mark.parametrize(("name", "options"), STEPWISE, ids=lambda value: str(value))
def test_every_method_writes_blocks_as_one_step_at_any_lookahead(
    name: str, options: dict[str, Any]
) -> None:
    for ahead in (0, 1, 3):
        events: list[Event] = []
        made = policy(name, **options)[1]
        (chain, end), _ = run(reason(made, PROBLEM, ahead=ahead, observe=events.append))
        assert end == "finished"
        assert [step.text for step in chain.steps] == list(STEPS)
        if name == "specreason":
            assert [event.draft.text for event in events if isinstance(event, Drafted)] == list(
                STEPS
            )


def test_a_delimiter_of_the_run_holds_for_every_method() -> None:
    text = re.sub("\n+", "\n", TEXT)

    def all_of(previous: Previous) -> str:
        return text

    lines = text.splitlines(keepends=True)
    for name, options in STEPWISE:
        made = policy(name, **options)[1]
        for model in (made.small, made.large) if hasattr(made, "small") else (made.author,):
            model.script = all_of
        (chain, _), _ = run(
            reason(made, Chain(PROBLEM.messages, ends=StepEnds.of(["So\n", "code:\n"])), ahead=1)
        )
        assert [step.text for step in chain.steps] == [
            lines[0],
            "".join(lines[1:8]),
            "".join(lines[8:]),
        ], name


def pieces(text: str, size: int) -> tuple[str, ...]:
    """
    *text* as tokens of *size* characters, which hold blank lines together with what is around them.
    """
    marked = text.replace(THINK_END, "\0")
    tokens = [marked[at : at + size] for at in range(0, len(marked), size)]
    return tuple(
        part
        for token in tokens
        for part in token.replace("\0", f"\1{THINK_END}\1").split("\1")
        if part
    )


async def written(model: VllmModel, **options: Any) -> list[Step]:
    chain = PROBLEM
    while not chain.finished:
        chain = chain.extend(await model.write(chain, **options))
    return list(chain.steps)


@pytest.mark.parametrize(("size", "chunk"), [(1, 1), (3, 3), (7, 1)])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.6, seed=7)], ids=str)
async def test_over_http_steps_are_the_same_with_a_stream_and_with_a_request_for_each(
    size: int, chunk: int, sampling: Sampling
) -> None:
    """
    The server stops within a block, and the rest comes by another request: the very tokens stay the
    same.
    """
    server = FakeVllm(pieces(TEXT, size), chunk=chunk)
    async with server.serve() as endpoint, VllmEndpoint(endpoint) as served:
        separate = await written(served.model(sampling))
        writes = [body for path, body in server.requests if path == "/v1/completions"]
        async with kept_open():
            together = await written(served.model(sampling))
    assert [step.text for step in separate] == list(STEPS)
    assert [step.tokens for step in separate] == [step.tokens for step in together]
    assert len(writes) <= 2 * len(STEPS)


async def test_the_server_stops_at_delimiters_but_for_the_rest_of_a_block() -> None:
    server = FakeVllm(pieces("".join(STEPS[:2]) + THINK_END, 3))
    async with server.serve() as endpoint, VllmEndpoint(endpoint) as served:
        await written(served.model(GREEDY))
    writes = [body for path, body in server.requests if path == "/v1/completions"]
    ends = ["\n\n", "\r\n\r\n"]
    assert [body["stop"] for body in writes] == [ends, ends, [], ends]
    assert {tuple(body["stop_token_ids"]) for body in writes} == {tuple(server.encode(THINK_END))}


async def test_rivals_go_on_within_a_block_too() -> None:
    server = FakeVllm(pieces(TEXT, 3))
    chain = PROBLEM.extend(Step(STEPS[0], "small"))
    async with server.serve() as endpoint, VllmEndpoint(endpoint) as served:
        model = served.model(GREEDY)
        steps = await at_once(model.write(chain, opening=text) for text in ("```", "```py\n"))
    assert [step.text for step in steps] == [STEPS[1], STEPS[1]]


@pytest.mark.parametrize("sticky", [False, True])
async def test_a_fence_that_is_not_closed_leaves_the_limit_and_the_end_of_the_thinking(
    sticky: bool,
) -> None:
    text = "```\n" + "a = 1\n\n" * 40 + THINK_END + "\n\nIt is 1.\n\n"
    server = FakeVllm(pieces(text, 4))
    async with server.serve() as endpoint, VllmEndpoint(endpoint) as served:
        if sticky:
            async with kept_open():
                steps = await written(served.model(GREEDY), limit=32)
        else:
            steps = await written(served.model(GREEDY), limit=32)
    assert [step.stop for step in steps] == ["length"] * (len(steps) - 1) + ["end"]
    assert {len(step.tokens) for step in steps[:-1]} == {32}
    assert steps[-1].text.endswith(THINK_END)


SCRIPT = ("So", " one", "\n", "Then", " two", "\n\n", "Done", THINK_END, "\n\n", "\\boxed{2}")


async def solved(choices: Any, **settings: Any) -> list[str]:
    server = FakeVllm(SCRIPT, digits={"9": -0.1})
    async with server.serve("small") as small, server.serve("large") as large:
        solver = Solver(
            small, large, sampling=GREEDY, ending="small", answer="large", auto=False, **settings
        )
        async with solver:
            solution = await solver.solve("What is 1 + 1?", **choices)
    return [step.text for step in solution.steps if step.fate == "kept"]


@pytest.mark.parametrize(
    ("delimiter", "steps"),
    [
        (None, ["So one\nThen two\n\n", f"Done{THINK_END}"]),
        ("\n", ["So one\n", "Then two\n", f"\nDone{THINK_END}"]),
        (["\n\n", "one\n"], ["So one\n", "Then two\n\n", f"Done{THINK_END}"]),
    ],
)
@pytest.mark.parametrize("ahead", [0, 2])
async def test_solve_takes_the_delimiter_of_a_run(
    delimiter: Any,
    steps: Sequence[str],
    ahead: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert await solved({"delimiter": delimiter}, ahead=ahead) == steps
    assert await solved({}, ahead=ahead, delimiter=delimiter) == steps


def test_settings_requests_and_arms_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load().delimiter == "\n\n"
    assert load(delimiter=["\n", "#"]).delimiter == ["\n", "#"]
    assert load().conditions()["delimiter"] == "\n\n"
    (tmp_path / "stepspec.toml").write_text('delimiter = ["\\n\\n", "\\n"]\n')
    assert load().delimiter == ["\n\n", "\n"]
    monkeypatch.setenv("STEPSPEC_DELIMITER", "Step")
    assert load().delimiter == "Step"
    assert StepspecOptions.model_validate({"delimiter": ["\n"]}).model_dump()["delimiter"] == ["\n"]
    assert arm('specreason:delimiter="\\n"').run.delimiter == "\n"


@pytest.mark.parametrize("delimiter", ["a" * 1025, ["a"] * 9, "", 3])
def test_a_client_of_the_service_sends_a_few_short_texts(delimiter: Any) -> None:
    with pytest.raises(ValidationError, match="delimiter"):
        StepspecOptions.model_validate({"delimiter": delimiter})


@pytest.mark.parametrize("delimiter", ["", [], ["\n", ""], 3])
def test_a_delimiter_that_ends_nothing_is_refused(
    delimiter: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="delimiter"):
        load(delimiter=delimiter)
    with pytest.raises(ConfigurationError, match="delimiter"):
        Solver(
            Endpoint(role="small", url="http://a"), Endpoint(role="large", url="http://b")
        ).settings.with_overrides({"delimiter": delimiter})
