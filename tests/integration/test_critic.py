"""
A reward model on a real vLLM pooling server: tiny, with random weights, but served as the real ones
are.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from stepspec import Solver
from stepspec.evals.testbed.servers import ENVIRONMENT, FLAGS, MODELS
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator import Chain, Step
from stepspec.orchestrator.backends.vllm import RewardModelEndpoint
from stepspec.orchestrator.backends.vllm.replies import pooled_values
from stepspec.orchestrator.backends.vllm.reward_model import sigmoid
from stepspec.orchestrator.endpoints import GREEDY, CriticEndpoint, Endpoint
from stepspec.orchestrator.errors import EndpointRejected
from stepspec.orchestrator.events import Called, Event
from stepspec.servers.doctor import diagnose
from stepspec.servers.doctor.report import Diagnosis, FindingOutcome
from stepspec.servers.launcher import Served, ServerCommand
from stepspec.servers.launcher.commands import arguments

from .conftest import Pair, serving

pytestmark = pytest.mark.servers
CHAIN = Chain.of(fresh_tasks(1, 4)[0].problem).extend(Step("On Monday 3 + 4 = 7.\n\n", "small"))
LONGER = CHAIN.extend(Step("On Tuesday 7 + 1 = 8.\n\n", "small"))
# labels, task
HEADS = {"one": (1, "classify"), "two": (2, "classify"), "tokens": (1, "token_classify")}
FOR_WRITING = ("generation-config", "enable-prompt-tokens-details", "structured-outputs-config")


def make_reward_model(folder: Path, labels: int) -> Path:
    """Give the small model's body a reward head of random weights."""
    torch: Any = import_module("torch")  # partly typed, and wanted by these tests alone
    transformers: Any = import_module("transformers")
    torch.manual_seed(labels)
    config = transformers.Qwen3Config.from_pretrained(
        MODELS / "small", num_labels=labels, pad_token_id=0
    )
    transformers.Qwen3ForSequenceClassification(config).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(MODELS / "small" / file, folder / file)
    return folder


@pytest.fixture(scope="module")
def critics(
    tmp_path_factory: pytest.TempPathFactory, forked: tuple[str, ...]
) -> Generator[Mapping[str, Served]]:
    """
    Serve a reward model with one logit, one with two classes, and one with a logit for every token.
    """
    servers: list[ServerCommand] = []
    for name, (labels, task) in HEADS.items():
        folder = make_reward_model(tmp_path_factory.mktemp(name), labels)
        flags = {key: value for key, value in FLAGS.items() if key not in FOR_WRITING}
        flags |= {
            "runner": "pooling",
            "convert": "classify",
            "pooler-config": {"task": task},
            "max-model-len": 1024,
            "kv-cache-memory-bytes": 256 * 2**20,
        }
        env = {**ENVIRONMENT, "VLLM_PLUGINS": ""}
        servers.append(ServerCommand(name, folder, f"prm-{name}", tuple(arguments(flags)), env))
    with serving(servers, forked) as served:
        yield served


@asynccontextmanager
async def connected(served: Served) -> AsyncGenerator[RewardModelEndpoint]:
    async with RewardModelEndpoint(CriticEndpoint(url=served.base_url)) as critic:
        yield critic


@pytest.mark.parametrize("head", HEADS)
async def test_every_kind_of_head_gives_distinct_rewards(
    critics: Mapping[str, Served], head: str
) -> None:
    events: list[Event] = []
    async with connected(critics[head]) as critic:
        assert critic.name == f"prm-{head}"
        assert critic.logits
        rater = critic.critic(observe=events.append)
        short, longer, again = [(await rater.rate(chain)).score for chain in (CHAIN, LONGER, CHAIN)]
    assert 0 < short < 1
    assert short == pytest.approx(again, abs=1e-5)
    assert abs(short - longer) > 1e-4
    assert [(call.role, call.verb, call.fate) for call in events if isinstance(call, Called)] == [
        ("critic", "rate", "done")
    ] * 3
    assert all(call.prompt > 10 for call in events if isinstance(call, Called))


@pytest.mark.parametrize("head", HEADS)
async def test_our_squashing_is_the_servers_own(critics: Mapping[str, Served], head: str) -> None:
    async with connected(critics[head]) as critic:
        call = critic.connection.call("rate")
        reply = await critic.connection.post(
            call, "/pooling", await critic.body(LONGER, logits=False)
        )
        assert (await critic.critic().rate(LONGER)).score == pytest.approx(
            pooled_values(call, reply)[-1], abs=1e-5
        )


async def test_classify_gives_the_same_rewards(critics: Mapping[str, Served]) -> None:
    async with connected(critics["one"]) as critic:
        ids = (await critic.body(LONGER))["input"]
        body = {"model": critic.name, "input": ids, "use_activation": False}
        reply = await critic.connection.post(critic.connection.call("rate"), "/classify", body)
        assert (await critic.critic().rate(LONGER)).score == pytest.approx(
            sigmoid(reply["data"][0]["probs"][0]), abs=1e-5
        )


async def test_the_reward_is_that_of_the_delimiters_own_token(
    critics: Mapping[str, Served],
) -> None:
    """
    A full stop and a blank line are one token of this vocabulary where they are encoded together.
    """
    async with connected(critics["tokens"]) as critic:
        rate = critic.connection.call("rate")
        tokenize = critic.connection.call("tokenize")

        async def encoded(text: str) -> list[int]:
            body = {"model": critic.name, "prompt": text, "add_special_tokens": False}
            return list((await critic.connection.post(tokenize, "/tokenize", body))["tokens"])

        async def rewards(ids: list[int]) -> list[float]:
            body = {"model": critic.name, "input": ids, "use_activation": False}
            reply = await critic.connection.post(rate, "/pooling", body)
            return [sigmoid(row[0]) for row in reply["data"][0]["data"]]

        step = CHAIN.steps[0].text
        together = await encoded(step)
        apart = [
            *await encoded(step.strip()),
            *await encoded("\n\n"),
        ]
        assert together != apart
        sent = (await critic.body(CHAIN))["input"]
        assert sent[-len(apart) :] == apart
        reward = (await critic.critic().rate(CHAIN)).score
        before = sent[: -len(apart)]
        all_of = await rewards(sent)
        assert len(all_of) == len(sent)
        assert reward == pytest.approx(all_of[-1], abs=1e-5)
        assert abs(reward - (await rewards([*before, *together]))[-1]) > 1e-4


async def test_a_critic_may_read_its_chat_template(critics: Mapping[str, Served]) -> None:
    async with RewardModelEndpoint(
        CriticEndpoint(url=critics["one"].base_url, layout="chat")
    ) as critic:
        chat = (await critic.body(CHAIN))["input"]
        assert 0 < (await critic.critic().rate(CHAIN)).score < 1
    async with connected(critics["one"]) as critic:
        plain = (await critic.body(CHAIN))["input"]
    assert chat != plain
    assert chat[-5:] == plain[-5:]


async def test_a_server_that_only_writes_is_no_critic(pair: Pair) -> None:
    with pytest.raises(EndpointRejected, match="--runner pooling"):
        await RewardModelEndpoint(CriticEndpoint(url=pair.small.base_url)).__aenter__()


@pytest.mark.parametrize(("threshold", "authors"), [(0.0, {"small"}), (1.0, {"large"})])
async def test_a_problem_is_solved_under_a_critics_eyes(
    pair: Pair, critics: Mapping[str, Served], threshold: float, authors: set[str]
) -> None:
    async with Solver(
        pair.small.base_url,
        pair.large.base_url,
        critic=critics["one"].base_url,
        policy="reward",
        options={"threshold": threshold},
        sampling=GREEDY,
        auto=False,
    ) as solver:
        problem = fresh_tasks(1, 4)[0].problem
        solution = await solver.solve(problem)
        one_by_one = await solver.solve(problem, ahead=0)
    kept = [(step.author, step.text) for step in solution.steps if step.fate == "kept"]
    assert kept == [(step.author, step.text) for step in one_by_one.steps if step.fate == "kept"]
    assert {author for author, text in kept if text.strip()} == authors
    drafts = [step for step in one_by_one.steps if step.author == "small"]
    blank = [step.text for step in drafts if step.grade is None]
    assert blank == ["\n\n"]  # before the method's own answer; it stands unread
    judged = len(drafts) - len(blank)
    assert one_by_one.ledger.drafts == solution.ledger.drafts == judged
    assert (
        solution.ledger.critic.requests
        >= one_by_one.ledger.critic.requests
        == len(drafts) - len(blank)
        > 0
    )
    assert solution.ledger.critic.judging > 0
    assert solution.ledger.critic.written == solution.ledger.critic.failed == 0


async def test_the_doctor_examines_every_kind_of_head(
    pair: Pair, critics: Mapping[str, Served]
) -> None:
    for served in critics.values():
        diagnosis = await diagnosed(pair, served)
        report = diagnosis.critic
        assert report is not None
        assert (report.problem, report.model) == ("", served.served_name)
        assert report.right is not None
        assert report.wrong is not None
        assert 0 < report.right < 1
        assert 0 < report.wrong < 1
        expected = [] if report.right > report.wrong else ["costs"]  # The weights are random.
        assert outcomes_of_the_critic(diagnosis) == expected


async def test_the_doctor_distinguishes_a_writing_model_from_a_reward_model(pair: Pair) -> None:
    diagnosis = await diagnosed(pair, pair.small)
    assert diagnosis.critic is not None
    assert "--runner pooling" in diagnosis.critic.problem
    assert outcomes_of_the_critic(diagnosis) == ["cannot work"]


async def diagnosed(pair: Pair, critic: Served) -> Diagnosis:
    return await diagnose(
        Endpoint(role="small", url=pair.small.base_url),
        Endpoint(role="large", url=pair.large.base_url),
        CriticEndpoint(url=critic.base_url),
    )


def outcomes_of_the_critic(diagnosis: Diagnosis) -> list[FindingOutcome]:
    return [finding.outcome for finding in diagnosis.findings if finding.subject == "critic"]
