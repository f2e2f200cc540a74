"""
How pytest-xdist deals the tests out to its workers, and a summary of the time that each group of
tests took.

The tests are dealt out by file, and each worker starts the servers that its files use; some files
form one group. Files whose tests use servers and others that take long come first, so that all
workers end together. Without xdist, all tests run in the order of their files.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
from collections import defaultdict
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from .distributions import Distributions, built_once

TESTS = Path(__file__).parent
CLIENTS = TESTS / "integration" / "clients"
VOCABULARIES = "vocabularies"
DOCKER = "docker"
VLLM = "vLLM's own code"
IMPORTING_VLLM = ("test_tool_parsers", "test_clients", "test_padded")
"""Files that import vLLM or torch into the process of the tests, which takes many seconds."""

TOGETHER = {  # files whose tests use the same servers
    **dict.fromkeys(
        ("test_tutorial", "test_dying", "test_priorities", "test_ray_serve", "test_tune"),
        "the paced pair",
    ),
    **dict.fromkeys(("test_endpoint", "test_solve"), "a small model of another vocabulary"),
}
FIRST = (  # what takes longest: groups and files
    "the paced pair",
    "test_eval",
    VLLM,
    "a small model of another vocabulary",
    "test_speculation",
    "test_load_generators",
    "test_random_pair",
    "test_policies",
    "test_soak",
    "test_lm_eval",
    "test_serving",
    "test_regular_expressions",
)
GROUPS = "groups.json"
DEATHS = "deaths.txt"
GROUP = pytest.StashKey[str | None]()


@pytest.fixture(autouse=True, scope="session")
def first_of_idle_replicas() -> Generator[None]:
    """Let the first of several replicas with equally few runs be used, not a random one."""
    from stepspec.orchestrator.endpoints import replicas

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replicas, "random", lambda: 0.0)
        yield


# xdist reads the groups in its own hook, which is no wrapper
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """
    Name the group of every test, and bring the tests into the order in which xdist deals them out.
    """
    for item in items:
        group = item.stash[GROUP] = _group(item)
        servers = "with servers" if item.get_closest_marker("servers") else "without servers"
        item.user_properties.append(("phase", f"{servers}, {group}" if group else servers))
    if _works(config):
        items.sort(key=_turn)
        groups = {item.nodeid: item.stash[GROUP] for item in items if item.stash[GROUP]}
        # every worker writes the same
        (shared_folder(config) / GROUPS).write_text(json.dumps(groups))
    yield


def _group(item: pytest.Item) -> str | None:
    """
    Return the group of a test, or None if the file is its group and its time is not of interest.
    """
    if item.get_closest_marker("servers"):
        return TOGETHER.get(item.path.stem, item.path.stem)
    if item.path.stem in IMPORTING_VLLM:
        return VLLM
    if TESTS / "docker" in item.path.parents:
        return DOCKER
    names = vars(getattr(item, "module", None) or item)
    return (
        VOCABULARIES if {"real_tokenizer", "real_vocabulary", "RealFamily"} & names.keys() else None
    )


def _turn(item: pytest.Item) -> tuple[int, bool]:
    """
    Return the place of a test in the order: what takes longest, the other groups, the foreign
    clients, the rest.
    """
    group = item.stash[GROUP]
    name = group or item.path.stem
    place = FIRST.index(name) if name in FIRST else len(FIRST) + (group is None)
    return place, CLIENTS in item.path.parents


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Deal out by group, and by file where a test has none, in the order of the collection."""
    config.option.loadscopereorder = False
    # it has no types
    scheduling: Any = import_module("xdist.scheduler").LoadGroupScheduling(config, log)
    groups = dict[str, str]()

    def group_of(nodeid: str) -> str:
        if not groups:
            groups.update(json.loads((shared_folder(config) / GROUPS).read_text()))
        return groups.get(nodeid) or nodeid.partition("::")[0]

    scheduling._split_scope = group_of
    return scheduling


def shared_folder(config: pytest.Config) -> Path:
    """Return the folder that all processes of this run share."""
    if _works(config):
        # xdist gives each worker a folder below that of the run
        return Path(config.option.basetemp).parent
    factory: pytest.TempPathFactory = vars(config)["_tmp_path_factory"]
    return factory.getbasetemp()


@pytest.fixture(scope="session")
def distributions(request: pytest.FixtureRequest) -> Distributions:
    """The wheel and the sdist of this clone."""
    return built_once(shared_folder(request.config))


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and a command line that a test may replace."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    return tmp_path


def _works(config: pytest.Config) -> bool:
    """Whether this process is one of xdist's workers."""
    return hasattr(config, "workerinput")


def pytest_configure() -> None:
    """
    Handle SIGINT and SIGHUP as Python does, where they are ignored: after ``nohup make test &`` in
    a script.

    Programs that the tests start would ignore it too, and with it the Ctrl-C that some tests send
    them.

    While modules are imported, garbage collections would take a fifth of the time for nothing.
    """
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but never look at what was imported."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None]:
    """Print how long each phase took, and at the very end which servers ended by themselves."""
    _print_phases(terminalreporter)
    yield
    deaths = shared_folder(config) / DEATHS
    if deaths.exists():
        terminalreporter.section("servers that ended by themselves")
        terminalreporter.write_line(deaths.read_text())


def _print_phases(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how much of each phase was setup, which is mostly starting servers."""
    phases: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and "phase" in (
                properties := dict(report.user_properties)
            ):
                phases[str(properties["phase"])][report.when == "setup"] += report.duration
    if len(phases) > 1:
        terminalreporter.section("seconds of each phase; several run at once")
        for phase, (seconds, setup) in sorted(phases.items(), key=lambda phase: -sum(phase[1])):
            terminalreporter.write_line(
                f"{seconds + setup:7.0f} s, of which {setup:4.0f} s setup: {phase}"
            )
