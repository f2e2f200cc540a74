"""What is pinned for the clients of other people."""

from __future__ import annotations

from .environments import FOLDER

CLIENTS = ("guidellm", "langchain", "litellm", "lm_eval", "openai_agents")


def test_every_client_pins_all_its_requirements_and_the_document_has_their_versions() -> None:
    table = (FOLDER.parents[2] / "docs" / "service.md").read_text()
    asking = sorted(FOLDER.glob("*/requirements.in"))
    assert tuple(path.parent.name for path in asking) == CLIENTS
    for path in asking:
        pins = dict(pin.split("==") for pin in path.with_suffix(".txt").read_text().splitlines())
        names = [line.partition("[")[0] for line in path.read_text().splitlines()]
        assert set(names) <= pins.keys()
        assert f"| {names[0]} {pins[names[0]]} |" in table
