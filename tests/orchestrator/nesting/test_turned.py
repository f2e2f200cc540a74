"""Several clients of the same servers, each of whom begins with other ones."""

from stepspec.orchestrator.nesting import NestedPair

NESTED = {"small": {"url": "http://a:1,http://b:1"}, "large": {"url": "http://d:1,http://e:1"}}


def test_every_model_of_a_nested_pair_turns() -> None:
    pair = NestedPair.model_validate(NESTED).turned(1)
    assert [one.url for _, one in pair.models] == ["http://b:1", "http://e:1"]
    assert pair.turned(1) == NestedPair.model_validate(NESTED)
