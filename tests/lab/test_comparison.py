"""A measurement is simulated problem by problem: one that was itself simulated comes out exactly."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
import pytest
from typer.testing import CliRunner

from lab.crowd import TWO_LARGE, BlockStore, Load
from lab.load import summarise
from lab.simulation import Script, Turn
from lab.simulation.__main__ import app, miniature_costs
from lab.simulation.comparison import Comparison, Measurement, compare
from lab.simulation.figures import Servers, simulate_block
from stepspec.evals.arms import LARGE, SHIPPED
from stepspec.orchestrator.errors import ConfigurationError

from ..fakes import run

LOADS = (Load(3), Load(1))
ARMS = (LARGE, TWO_LARGE, SHIPPED)
COSTS = miniature_costs("slow", 0.01)
ENDS = Turn(1, 1, author="large", stop="end", ends=True)
SCRIPTS = [
    Script(
        40 + 9 * number, (Turn(12, 12), Turn(9 + number, 0, 14, 2.0), Turn(11, 11), ENDS, Turn(6, 6, stop="end")), 70
    )
    for number in range(3)
]


HEADER = {"world": "short", "profile": "slow", "seed": 5, "problems": 6, "blocks": 2}


@cache
def recorded() -> tuple[bytes, bytes]:
    """The figures and the blocks as a load writes them; their times are simulated."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "load.blocks.jsonl"
        with BlockStore(path, HEADER, ARMS) as store:
            for load, arm, block in product(LOADS, ARMS, range(2)):
                servers = Servers(COSTS["small"], COSTS["large"], {"large": 1 + (arm == TWO_LARGE)}).start()
                work = simulate_block(load, arm, SCRIPTS, SCRIPTS, servers, seed=5, block=block)
                store.add((load.name, arm.name, block), run(work)[0])
            cells = summarise(LOADS, ARMS, 2, store.done)
        return orjson.dumps([{**asdict(cell), **HEADER} for cell in cells]), path.read_bytes()


def measured(folder: Path) -> Path:
    path = folder / "load.json"
    figures, blocks = recorded()
    path.write_bytes(figures)
    path.with_suffix(".blocks.jsonl").write_bytes(blocks)
    return path


def test_a_simulated_measurement_is_reproduced_exactly(tmp_path: Path) -> None:
    measurement = Measurement.read(measured(tmp_path))
    assert Measurement.read(tmp_path / "load.blocks.jsonl") == measurement
    found = compare(measurement, Servers(COSTS["small"], COSTS["large"]))
    assert [(each.load, each.name) for each in found] == [(load.name, arm.name) for load in LOADS for arm in ARMS]
    assert all(each.n == 6 and each.near for each in found)
    for each in found:
        assert each.ratios == pytest.approx({"mean": 1.0, "first step": 1.0, "answer at": 1.0})


def test_servers_that_are_slower_show(tmp_path: Path) -> None:
    slow = {role: replace(costs, per_pass=1.5 * costs.per_pass) for role, costs in COSTS.items()}
    found = compare(Measurement.read(measured(tmp_path)), Servers(slow["small"], slow["large"]))
    assert not any(each.near for each in found)
    assert found[0].ratios["mean"] == pytest.approx(1.5, rel=0.02)


def test_problems_without_a_solution_are_left_out(tmp_path: Path) -> None:
    path = measured(tmp_path)
    stored = path.with_suffix(".blocks.jsonl")
    lines = [orjson.loads(line) for line in stored.read_bytes().splitlines()]
    lines[1]["timings"][0] |= {"script": None, "failure": "no answer"}
    stored.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    found = compare(Measurement.read(path), Servers(COSTS["small"], COSTS["large"]))
    assert [each.n for each in found] == [5, *[6] * 5]


def test_the_command_prints_every_cell_and_how_many_are_near(tmp_path: Path) -> None:
    path, output = measured(tmp_path), tmp_path / "simulated.json"
    result = CliRunner().invoke(app, ["compare", str(path), "--per-request", "0.01", "--output", str(output)])
    assert result.exit_code == 0, result.output
    assert "6 of 6 cells within 10%" in result.output
    written = orjson.loads(output.read_bytes())
    assert (written["near"], len(written["cells"])) == (6, 6)
    far = CliRunner().invoke(app, ["compare", str(path), "--per-request", "3", "--output", str(output)])
    assert far.exit_code == 1
    assert "0 of 6" in far.output


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no blocks of a load"):
        Measurement.read(tmp_path / "nothing.json")
    path = measured(tmp_path)
    stored = path.with_suffix(".blocks.jsonl")
    lines = [orjson.loads(line) for line in stored.read_bytes().splitlines()]
    for line in lines[1:]:
        line["timings"] = [{**timing, "script": None} for timing in line["timings"]]
    stored.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    with pytest.raises(ConfigurationError, match="no problem has a script"):
        Measurement.read(path)


def test_a_time_is_near_within_a_tenth() -> None:
    def near(simulated: float) -> bool:
        return Comparison("a", "1 at once", 4, {"mean": 2.0}, {"mean": simulated}).near

    assert [near(seconds) for seconds in (1.7, 1.81, 2.19, 2.3)] == [False, True, True, False]
