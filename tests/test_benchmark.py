"""The benchmark against other libraries: results of a run, targets, tables, commands."""

import itertools
import json
import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from peers import table, turns  # noqa: E402 (a folder of scripts)
from peers.table import Program, Row, Target  # noqa: E402


def python(code, **how):
    return Program("peer", ((sys.executable, "-c", code),), venv="", **how)


def result(unit, ours, **peers):
    programs = tuple(Program(name, ((),), venv="") for name in ("ours", *peers))
    targets = (Target(2.0, 3.0, tuple(peers)),) if peers else (Target(4.0),)
    row = Row("row", "some work", programs, targets, 1, unit)
    return turns.Result(row, {"ours": ours, **peers})


@pytest.mark.parametrize("line", ["steps {n}00 and more", "SPS: 7"])
def test_speed_is_that_of_the_lines(line):
    # 100 steps each 20 ms: 5,000 per second, whatever the speed in the first second.
    code = (
        "import time\n"
        "time.sleep(1)\n"
        "began, n = time.perf_counter(), 0\n"
        "while True:\n"
        "    n += 1\n"
        "    time.sleep(max(0, began + 0.02 * n - time.perf_counter()))\n"
        f"    print(f'{line}')\n"
    )
    speed = turns.speed(python(code), 100, seconds=1.0, warm_up=0.2)
    assert speed == pytest.approx(5000, rel=0.2)


def test_a_program_that_ends_early_shows_what_it_said():
    with pytest.raises(SystemExit, match="no such thing"):
        turns.speed(python("raise ValueError('no such thing')"), 100, 1.0, 0.0)


def test_durations_are_of_whole_processes_that_did_what_they_were_for():
    began = time.perf_counter()
    took = turns.seconds_of(
        python("import time; time.sleep(0.3); print('solved')", says="solved"), 0
    )
    assert 0.3 < took <= time.perf_counter() - began
    assert turns.seconds_of(python("print('out of steps')", says="solved"), 0) == math.inf


def test_a_return_is_the_last_that_a_process_says():
    code = "print('mean return 7.0'); print('steps: 9 environment steps, mean return -14.5')"
    assert turns.return_of(python(code), 0) == -14.5
    learned = result("return", [900.0, 1100.0, 1200.0], slow=[1000.0])
    assert learned.met(learned.row.targets[0]) is False
    assert turns.render([learned], {}).count("1,100 (900-1,200)") == 1


def test_the_best_peer_counts():
    faster = result("steps/s", [90.0, 100.0, 500.0], slow=[10.0], fast=[30.0, 60.0, 50.0])
    assert faster.ratio(faster.row.targets[0]) == (2.0, "fast")
    assert faster.met(faster.row.targets[0])
    shorter = result("s", [4.0], slow=[8.0], fast=[1.0])
    assert shorter.ratio(shorter.row.targets[0]) == (4.0, "fast")
    assert not shorter.met(shorter.row.targets[0])
    alone = result("s", [3.9])
    assert alone.met(alone.row.targets[0])
    assert not result("s", [4.1]).met(alone.row.targets[0])


def test_a_row_whose_peers_are_missing_is_not_met():
    lonely = turns.Result(result("steps/s", [9.0], gone=[1.0]).row, {"ours": [9.0]})
    assert not lonely.met(lonely.row.targets[0])
    assert "no peer" in turns.render([lonely], {})


def test_table_and_json():
    found = [replace(result("steps/s", [90.0, 100.0, 120.0], fast=[20.0]), exchanges=(50.0, 70.0))]
    shown = turns.render(found, {"cpu": "some"})
    assert "| some work | 100 (90-120) | fast 20 (20-20) | 5.00 x fast |" in shown
    assert ">= 2 x, goal 3 x: met" in shown
    assert "- two cores exchange a line of the cache in: 60 (50-70) ns\n" in shown
    data = json.loads(turns.as_json(found, {"cpu": "some"}))
    assert data["rows"][0]["values"] == {"ours": [90.0, 100.0, 120.0], "fast": [20.0]}
    assert data["rows"][0]["targets"][0]["ratio"] == 5.0
    assert data["rows"][0]["exchanges_ns"] == [50.0, 70.0]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_cores_exchange_a_line_in_tens_or_hundreds_of_ns():
    (found,) = turns.exchange()
    assert 5 < found < 100_000  # on cores that others use, it waits for them


def test_every_row_gives_the_peers_our_configuration():
    rows = table.rows()
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        names = [program.name for program in row.programs]
        assert len(set(names)) == len(names), row.name
        assert {name for target in row.targets for name in target.against} <= set(names[1:])
        words = row.programs[0].commands[0]
        options = (word for flag, word in itertools.pairwise(words) if flag != "--schedule")
        keys = [word for word in options if "=" in word]
        for program in row.programs[1:]:
            if program.venv in ("sb3", "rllib", "jax"):
                config = json.loads(program.commands[0][2])
                assert row.steps == config["num_envs"] * config["num_steps"]
                shown = {k: v if isinstance(v, str) else json.dumps(v) for k, v in config.items()}
                assert all(shown[k] == v for k, v in (key.split("=") for key in keys))
