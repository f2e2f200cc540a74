"""A pair's file with a nested pair as its small model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.launcher.check import GIB, Machine, check_pair
from stepspec.orchestrator.launcher.commands import servers, waves
from stepspec.orchestrator.launcher.pair import Pair, PairWithin, StartedServer, load

FOUR = """
large = "http://large:1"

[small]
policy = "bild"
options = { scale = "step" }
large = { model = "./middle", port = 8001 }

[small.small.large]
model = "org/tiny"
gpus = [1]

[small.small.small]
url = "http://a:1,http://b:1"
retries = 0
"""
BIG, MIDDLE, TINY = "Qwen/Qwen3-32B", "Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B"
KNOWN = Machine(weights={(MIDDLE, None): 16 * GIB, (TINY, None): 2 * GIB})

CARDS: list[tuple[Sequence[Sequence[int]], list[list[str]]]] = [
    (([0, 1], [0], [1]), [["large"], ["small.large", "small.small"]]),
    (([0], [1], [2]), [["large", "small.large", "small.small"]]),
    (([0], [1], [1]), [["large", "small.large"], ["small.small"]]),
    (([0], [0, 1], [1]), [["large"], ["small.large"], ["small.small"]]),
    (([0], [0], [0]), [["large"], ["small.large"], ["small.small"]]),
    (([], [], []), [["large", "small.large", "small.small"]]),
]


def three(
    large: Mapping[str, Any] | None = None,
    middle: Mapping[str, Any] | None = None,
    tiny: Mapping[str, Any] | None = None,
) -> Pair:
    within: dict[str, Any] = {
        "large": {"model": MIDDLE, "gpus": [0], "memory": 0.4, **(middle or {})},
        "small": {"model": TINY, "gpus": [1], "memory": 0.2, **(tiny or {})},
    }
    dearest = {"model": BIG, "gpus": [0, 1], "memory": 0.55, **(large or {})}
    return Pair.model_validate({"large": dearest, "small": within, "card": 79})


def complaint(wrong: Pair, known: Machine = KNOWN) -> str:
    with pytest.raises(ConfigurationError) as failure:
        check_pair(wrong, known)
    return str(failure.value)


def read(text: str, folder: Path) -> Pair:
    (folder / "pair.toml").write_text(text)
    return load(folder / "pair.toml")


def test_pairs_nest_to_any_depth_and_every_model_has_its_path(tmp_path: Path) -> None:
    pair = read(FOUR, tmp_path)
    assert pair.connected == {
        "large": Endpoint(role="large", url="http://large:1"),
        "small.small.small": Endpoint(role="small", url="http://a:1", replicas=("http://b:1",), retries=0),
    }
    assert pair.started == {
        "small.large": StartedServer(model=str(tmp_path / "middle"), port=8001),
        "small.small.large": StartedServer(model="org/tiny", gpus=(1,)),
    }
    assert list(pair.models) == ["large", "small.large", "small.small.large", "small.small.small"]
    assert {path: (one.policy, one.options) for path, one in pair.nested.items()} == {
        "small": ("bild", {"scale": "step"}),
        "small.small": ("specreason", {}),
    }
    assert isinstance(pair.small, PairWithin)
    assert three().nested == {"small": three().small}
    assert Pair.model_validate({"large": "http://a:1", "small": "http://b:1"}).nested == {}


@pytest.mark.parametrize(
    ("was", "now", "complaint"),
    [
        ("policy", "polcy", "unknown setting 'small.polcy' (did you mean 'policy'?)"),
        ("gpus", "gpu", "unknown setting 'small.small.large.gpu' (did you mean 'gpus'?)"),
        ("retries", "retrys", "unknown setting 'small.small.small.retrys' (did you mean 'retries'?)"),
        ("[small.small.large]", "[small.small.lrage]", "small.small.large: Field required"),
        ("[small.small.large]", "[small.small.lrage]", "unknown setting 'small.small.lrage' (did you mean 'large'?)"),
        ("[small.small.small]", "[small.smalls.small]", "unknown setting 'small.smalls' (did you mean 'small'?)"),
        ('large = "http', 'crad = 24\nlarge = "http', "unknown setting 'crad' (did you mean 'card'?)"),
        ('large = "http', 'policy = "bild"\nlarge = "http', "policy: only a pair within has it in this file"),
        ('model = "org/tiny"', "", "small.small.large.model: Field required"),
        (
            "port = 8001",
            'speculation = { method = "ngram", token = 3 }',
            "'small.large.speculation.token' (did you mean",
        ),
    ],
)
def test_errors_within_a_nested_pair_are_named_by_their_path(
    was: str, now: str, complaint: str, tmp_path: Path
) -> None:
    assert was in FOUR
    with pytest.raises(ConfigurationError) as failure:
        read(FOUR.replace(was, now, 1), tmp_path)
    assert complaint in str(failure.value)
    assert "a server" not in str(failure.value)


def test_servers_are_called_by_their_paths_and_served_by_their_own_names() -> None:
    made = servers(three(middle={"name": "teacher"}))
    assert [(server.name, server.served_name) for server in made] == [
        ("large", BIG),
        ("small.large", "teacher"),
        ("small.small", TINY),
    ]
    assert [server.model for server in made] == [BIG, MIDDLE, TINY]


def test_the_next_cheaper_model_drafts_tokens() -> None:
    pair = three({"speculation": "draft_model"}, {"speculation": "draft_model"}, {"revision": "v2"})
    drafting: list[dict[str, Any]] = [
        json.loads(server.args[server.args.index("--speculative-config") + 1]) for server in servers(pair)[:2]
    ]
    assert [(one["model"], one.get("revision")) for one in drafting] == [(MIDDLE, None), (TINY, "v2")]
    assert pair.drafter("small.small") is None
    elsewhere = three({"speculation": "draft_model"}, {"speculation": "draft_model"}).model_copy(
        update={"small": three().nested["small"].model_copy(update={"large": Endpoint(role="large", url="http://m:1")})}
    )
    assert elsewhere.drafter("large") is None
    assert "large.speculation: the pair has no smaller model that could draft" in complaint(elsewhere)


@pytest.mark.parametrize(("cards", "order"), CARDS)
def test_only_servers_that_share_a_card_wait_for_each_other(
    cards: Sequence[Sequence[int]], order: list[list[str]]
) -> None:
    made = waves(three(*({"gpus": one} for one in cards)))
    assert [[server.name for server in wave] for wave in made] == order


def test_each_model_within_is_checked() -> None:
    check_pair(three(), KNOWN)
    assert "small.large does not fit: its weights take 16.0 GiB" in complaint(three(middle={"memory": 0.2}))
    assert "raise small.small.memory" in complaint(three(tiny={"memory": 0.01}))
    taken = Machine(taken={("127.0.0.1", 8003): "Address already in use"})
    assert "small.small.port: 127.0.0.1:8003 is not available" in complaint(three(tiny={"port": 8003}), taken)
    message = complaint(three({"port": 8001}, {"port": 8002}, {"port": 8001}))
    assert "large and small.small have the same port 8001" in message
    assert "small.small: there is no GPU 4" in complaint(three(tiny={"gpus": [4]}), Machine(cards=2))
