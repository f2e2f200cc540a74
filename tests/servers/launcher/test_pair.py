"""A pair's file: what it may contain, and what is refused, with its place and the cure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.toml import document
from stepspec.servers.launcher.pair import Pair, StartedServer, load

BIG = {"model": "big"}
TINY = {"model": "tiny"}
FILE = """
[large]
model = "org/big"

[small]
model = "./tiny"
gpus = [1]
port = 8001
"""


def read(text: str, folder: Path) -> Pair:
    (folder / "pair.toml").write_text(text)
    return load(folder / "pair.toml")


def refused(text: str, complaint: str, folder: Path) -> None:
    with pytest.raises(ConfigurationError) as failure:
        read(text, folder)
    assert complaint in str(failure.value)
    assert str(folder / "pair.toml") in str(failure.value)


def test_a_file_has_two_servers_to_start(tmp_path: Path) -> None:
    pair = read(FILE, tmp_path)
    assert pair.large == StartedServer(model="org/big")
    small = StartedServer(model=str(tmp_path / "tiny"), gpus=(1,), port=8001)
    assert pair.small == small
    assert list(pair.models.items()) == [("large", pair.large), ("small", small)]


def test_folders_are_relative_to_the_file_and_other_names_are_hub_ids(tmp_path: Path) -> None:
    speculation = {"method": "mtp", "model": "./head"}
    values = {
        "large": {"model": "./big", "speculation": speculation},
        "small": {"model": "org/tiny"},
    }
    pair = read(document(values), tmp_path)
    assert [one.model for one in pair.models.values()] == [str(tmp_path / "big"), "org/tiny"]
    assert pair.large.speculation == {"method": "mtp", "model": str(tmp_path / "head")}
    hub = document(values | {"large": BIG | {"speculation": {"model": "org/head"}}})
    assert read(hub, tmp_path).large.speculation == {"model": "org/head"}


@pytest.mark.parametrize(
    ("was", "now", "complaint"),
    [
        ("gpus", "gpu", "unknown setting 'small.gpu' (did you mean 'gpus'?)"),
        ("[small]", "[smalls]", "small: Field required"),
        ("[small]", "[smalls]", "unknown setting 'smalls' (did you mean 'small'?)"),
        (
            "[large]",
            "ready_second = 24\n[large]",
            "unknown setting 'ready_second' (did you mean 'ready_seconds'?)",
        ),
        (
            "[large]",
            'policy = "bild"\n[large]',
            "unknown setting 'policy'",
        ),
        ('model = "./tiny"', "", "small.model: Field required"),
    ],
)
def test_errors_are_named_by_their_place(
    was: str, now: str, complaint: str, tmp_path: Path
) -> None:
    assert was in FILE
    refused(FILE.replace(was, now, 1), complaint, tmp_path)


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
        (
            BIG | {"speculation": "ngram"},
            "large.speculation: Input should be a valid dictionary",
        ),
        ({"url": "http://there:1"}, "unknown setting 'large.url'"),
        ("big", "large: Input should be a valid dictionary"),
        (
            {"small": {"model": "a"}, "large": {"model": "b"}},
            "large.model: Field required",
        ),
        (3, "large: Input should be a valid dictionary"),
    ],
)
def test_a_role_that_cannot_be_meant_is_refused(large: Any, complaint: str, tmp_path: Path) -> None:
    refused(document({"large": large, "small": TINY}), complaint, tmp_path)


def test_a_missing_or_invalid_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml: No such file"):
        load(tmp_path / "nowhere.toml")
    refused("large = [", "is not TOML", tmp_path)
    (tmp_path / "pair.toml").write_bytes(b'large = "\xff"')
    with pytest.raises(ConfigurationError, match=r"pair\.toml is not TOML"):
        load(tmp_path / "pair.toml")
