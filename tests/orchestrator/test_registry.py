"""
Registries: built-in things, plugins and what a program adds are found by name, and no name changes
its meaning.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.registry import Registry


def read(name: str, value: object) -> str:
    if value is None:
        raise ConfigurationError(f"{name} is nothing")
    return f"read {getattr(value, '__name__', value)}"


def made(reserved: frozenset[str] = frozenset()) -> Registry[str]:
    return Registry("thing", "things", "stepspec.things", {"own": "built in"}, read, reserved)


def install(folder: Path, package: str, points: Sequence[str]) -> None:
    """Put a package with entry points into *folder*, as an installer does."""
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("\n".join(["[stepspec.things]", *points]) + "\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_a_plugin_is_found_by_its_name_beside_the_built_in_entries(site: Path) -> None:
    install(site, "more", ["extra = json:dumps"])
    registry = made()
    assert registry.find("extra") == "read dumps"
    assert list(registry) == ["own", "extra"]
    assert len(registry) == 2


def test_plugins_are_loaded_for_an_unknown_name_only(site: Path) -> None:
    install(site, "more", ["extra = bad_module_of_the_test:thing"])
    (site / "bad_module_of_the_test.py").write_text("raise RuntimeError('loaded')")
    registry = made()
    assert registry.find("own") == "built in"
    assert "own" in registry
    assert "_plugins" not in vars(registry)
    assert "elsewhere" not in registry
    assert "loaded" in registry.broken["extra"]


@pytest.mark.parametrize(
    ("point", "cause"),
    [
        ("extra = gone_module:thing", "ModuleNotFoundError: No module named 'gone_module'"),
        ("extra = json:gone", "AttributeError"),
        ("extra = bad_module_of_the_test:thing", "SystemExit: 3"),
        ("extra = none_module_of_the_test:thing", "extra is nothing"),
        ("own = json:dumps", "stepspec has this name itself"),
        ("auto = json:dumps", "stepspec has this name itself"),
        ("a:b = json:dumps", "a name is a letter, followed by"),
    ],
)
def test_a_broken_plugin_is_reported_by_name_and_package_and_disturbs_nothing(
    point: str, cause: str, site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install(site, "broken", [point, "good = json:loads"])
    (site / "bad_module_of_the_test.py").write_text("raise SystemExit(3)")
    (site / "none_module_of_the_test.py").write_text("thing = None")
    registry = made(frozenset({"auto"}))
    with caplog.at_level(logging.WARNING, "stepspec"):
        assert dict(registry) == {"own": "built in", "good": "read loads"}
    (line,) = [record.getMessage() for record in caplog.records]
    name = point.split(" =")[0]
    assert line.startswith(f"the thing {name!r} of broken 1.0 cannot be used: ")
    assert cause in line
    assert registry.broken == {name: line}
    if name != "own":
        with pytest.raises(ConfigurationError, match=r"of broken 1\.0 cannot be used"):
            registry.find(name)


def test_of_two_packages_with_one_name_the_first_has_it(site: Path) -> None:
    install(site, "later", ["extra = json:dumps"])
    install(site, "earlier", ["extra = json:loads"])
    registry = made()
    assert registry.find("extra") == "read loads"
    assert "later 1.0" in registry.broken["extra"]
    assert "another package has this name too" in registry.broken["extra"]


def test_another_thing_of_the_same_name_gets_a_number_and_the_first_keeps_the_name(
    site: Path,
) -> None:
    install(site, "more", ["extra = json:dumps"])
    registry = Registry(
        "thing", "things", "stepspec.things", {"own": 0}, lambda name, value: id(value)
    )

    def thing(name: str) -> object:
        def function() -> None: ...

        function.__name__ = name
        return function

    first, second, third = (thing("mine") for _ in range(3))
    assert [registry.add(each) for each in (first, second, third, second)] == [
        "mine",
        "mine-2",
        "mine-3",
        "mine-2",
    ]
    assert registry.find("mine") == id(first)
    assert {"mine", "mine-2"} < {*registry}
    assert registry.add(thing("own")) == "own-2"
    assert registry.add(thing("extra")) == "extra-2"


def test_what_has_no_name_is_refused_and_so_is_an_unknown_one_with_a_guess(site: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"no thing 'wn' \(did you mean 'own'\?\); the things: own$"
    ):
        made().find("wn")
    with pytest.raises(ConfigurationError, match="has to have a name"):
        made().add(lambda: None)
    assert made().add(partial(read, "bound")) == "read"
