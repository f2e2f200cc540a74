"""A pair's file: what it may contain, and what is refused, with its place and the cure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.toml import document
from stepspec.servers.launcher.pair import Pair, StartedServer, load

BIG = {"model": "big"}
TINY = {"model": "tiny"}
FILE = """
large = "http://a:1,http://b:1"

[small]
model = "./tiny"
gpus = [1]
port = 8001
"""
RUNNING = """
[large]
url = "http://a:1"
retries = 0

[small]
model = "org/tiny"
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


def test_a_model_is_a_server_to_start_or_one_that_runs(tmp_path: Path) -> None:
    pair = read(FILE, tmp_path)
    large = Endpoint(role="large", url="http://a:1,http://b:1")
    assert pair.connected == {"large": large}
    small = StartedServer(model=str(tmp_path / "tiny"), gpus=(1,), port=8001)
    assert pair.started == {"small": small}
    assert list(pair.models) == ["large", "small"]
    plain = Pair.model_validate({"large": "http://a:1", "small": "http://b:1,http://c:1"})
    assert plain.started == {}
    assert plain.small == Endpoint(role="small", url="http://b:1,http://c:1")


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
        ("gpus", "gpu", "unknown setting 'small.gpu' (did you mean 'gpus'?)"),
        ("[small]", "[smalls]", "small: Field required"),
        ("[small]", "[smalls]", "unknown setting 'smalls' (did you mean 'small'?)"),
        (
            'large = "http',
            'crad = 24\nlarge = "http',
            "unknown setting 'crad' (did you mean 'card'?)",
        ),
        (
            'large = "http',
            'policy = "bild"\nlarge = "http',
            "policy: write it into stepspec.toml",
        ),
        ('model = "./tiny"', "", "small.model: Field required"),
        (
            "port = 8001",
            'speculation = { method = "ngram", token = 3 }',
            "'small.speculation.token' (did you",
        ),
    ],
)
def test_errors_are_named_by_their_place(
    was: str, now: str, complaint: str, tmp_path: Path
) -> None:
    assert was in FILE
    refused(FILE.replace(was, now, 1), complaint, tmp_path)


def test_errors_of_a_server_that_runs_are_named_by_their_place(tmp_path: Path) -> None:
    complaint = "unknown setting 'large.retrys' (did you mean 'retries'?)"
    refused(RUNNING.replace("retries", "retrys"), complaint, tmp_path)


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
            "large.model: Field required",
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
    refused(document({"large": "http://a:1", "small": 3}), NEITHER, tmp_path)
    (tmp_path / "pair.toml").write_bytes(b'large = "\xff"')
    with pytest.raises(ConfigurationError, match=r"pair\.toml is not TOML"):
        load(tmp_path / "pair.toml")
