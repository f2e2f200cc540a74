"""A pair's file: what it may contain, and what is refused, with its place and the cure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.toml import document
from stepspec.servers.launcher.pair import Pair, PairWithin, StartedServer, load

BIG = {"model": "big"}
TINY = {"model": "tiny"}
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


def read(text: str, folder: Path) -> Pair:
    (folder / "pair.toml").write_text(text)
    return load(folder / "pair.toml")


def refused(text: str, complaint: str, folder: Path) -> None:
    with pytest.raises(ConfigurationError) as failure:
        read(text, folder)
    assert complaint in str(failure.value)
    assert str(folder / "pair.toml") in str(failure.value)
    assert "a server to start" not in str(failure.value)


def test_pairs_nest_to_any_depth_and_every_model_has_its_path(tmp_path: Path) -> None:
    pair = read(FOUR, tmp_path)
    assert pair.connected == {
        "large": Endpoint(role="large", url="http://large:1"),
        "small.small.small": Endpoint(
            role="small", url="http://a:1", replicas=("http://b:1",), retries=0
        ),
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
    plain = Pair.model_validate({"large": "http://a:1", "small": "http://b:1,http://c:1"})
    assert (plain.nested, plain.started) == ({}, {})
    assert plain.small == Endpoint(role="small", url="http://b:1", replicas=("http://c:1",))


def test_folders_are_relative_to_the_file_and_other_names_are_hub_ids(tmp_path: Path) -> None:
    speculation = {"method": "mtp", "model": "./head"}
    values = {
        "large": {"model": "./big", "speculation": speculation},
        "small": {"model": "org/tiny"},
    }
    pair = read(document(values), tmp_path)
    assert [one.model for one in pair.started.values()] == [str(tmp_path / "big"), "org/tiny"]
    assert pair.drafter("large") == (str(tmp_path / "head"), None)


@pytest.mark.parametrize(
    ("was", "now", "complaint"),
    [
        ("policy", "polcy", "unknown setting 'small.polcy' (did you mean 'policy'?)"),
        ("gpus", "gpu", "unknown setting 'small.small.large.gpu' (did you mean 'gpus'?)"),
        (
            "retries",
            "retrys",
            "unknown setting 'small.small.small.retrys' (did you mean 'retries'?)",
        ),
        ("[small.small.large]", "[small.small.lrage]", "small.small.large: Field required"),
        (
            "[small.small.large]",
            "[small.small.lrage]",
            "unknown setting 'small.small.lrage' (did you mean 'large'?)",
        ),
        (
            "[small.small.small]",
            "[small.smalls.small]",
            "unknown setting 'small.smalls' (did you mean 'small'?)",
        ),
        (
            'large = "http',
            'crad = 24\nlarge = "http',
            "unknown setting 'crad' (did you mean 'card'?)",
        ),
        (
            'large = "http',
            'policy = "bild"\nlarge = "http',
            "policy: only a pair within has it in this file",
        ),
        ('model = "org/tiny"', "", "small.small.large.model: Field required"),
        (
            "port = 8001",
            'speculation = { method = "ngram", token = 3 }',
            "'small.large.speculation.token' (did you",
        ),
    ],
)
def test_errors_within_a_nested_pair_are_named_by_their_path(
    was: str, now: str, complaint: str, tmp_path: Path
) -> None:
    assert was in FOUR
    refused(FOUR.replace(was, now, 1), complaint, tmp_path)


NEITHER = "write a table with a `model` to start, or the URL of a running server: 3 is neither"


@pytest.mark.parametrize(
    ("large", "complaint"),
    [
        ({}, "large.model"),
        (BIG | {"memory": 1.1}, "large.memory"),
        (BIG | {"gpus": [0, 0]}, "a card is repeated"),
        (BIG | {"gpu": 1}, "unknown setting 'large.gpu'"),
        (BIG | {"flags": {"max-model-len": 3}}, "'max-model-len' has its own setting, context"),
        (BIG | {"flags": {"max_num_seqs": 3}}, "write 'max_num_seqs' as 'max-num-seqs'"),
        (BIG | {"flags": {"--seed": 3}}, "write '--seed' as 'seed'"),
        (
            BIG | {"flags": {"api-key": "secret"}},
            "'api-key' would be seen in the list of processes: start",
        ),
        (
            BIG | {"flags": {"hf-token": "secret"}},
            "'hf-token' would be seen in the list of processes: set",
        ),
        (BIG | {"environment": {"CUDA_VISIBLE_DEVICES": "1"}}, "has its own setting, gpus"),
        (BIG | {"speculation": "speculative"}, "'none', 'ngram'"),
        (BIG | {"speculation": "eagle3"}, "eagle3 needs a drafter trained for this model: name it"),
        (BIG | {"speculation": {"tokens": 3}}, "the method is none"),
        (
            BIG | {"speculation": {"method": "ngram", "depth": 3}},
            "unknown setting 'large.speculation.depth'",
        ),
        ({"url": "ftp://there"}, "not the URL of a server"),
        ({"url": "http://there:1", "gpus": [0]}, "unknown setting 'large.gpus'"),
        ("big", "large.url: 'big' is not the URL of a server"),
        (
            {"small": {"model": "a"}, "large": {"model": "b"}},
            "large: only the small model may be a pair itself",
        ),
        (3, f"large: {NEITHER}"),
    ],
)
def test_a_role_that_cannot_be_meant_is_refused(large: Any, complaint: str, tmp_path: Path) -> None:
    refused(document({"large": large, "small": TINY}), complaint, tmp_path)


def test_a_missing_or_invalid_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml: No such file"):
        load(tmp_path / "nowhere.toml")
    refused("large = [", "is not TOML", tmp_path)
    refused(
        document({"large": "http://a:1", "small": {"large": "http://b:1", "small": 3}}),
        NEITHER,
        tmp_path,
    )
    (tmp_path / "pair.toml").write_bytes(b'large = "\xff"')
    with pytest.raises(ConfigurationError, match=r"pair\.toml is not TOML"):
        load(tmp_path / "pair.toml")
