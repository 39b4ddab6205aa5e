"""The drill: its table, its parts for real, and the promises that its rows keep."""

import re
from argparse import Namespace
from pathlib import Path

import pytest

from scripts import drill
from tests.chaos import neighbours
from tests.chaos.cases import run_part
from tests.chaos.jobs import Broken, Outcome, Place, Skipped
from tests.chaos.test_chaos import struck
from tests.commands import python

ROOT = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)(?:\[(.+?): (.+?)\])?`")


def test_the_table_is_markdown_and_counts_what_was_broken():
    cases = [
        Outcome("limits", "| head -1", "exit code 0", True),
        Outcome("disk", "full\ndisk", "a traceback", False),
        Outcome("disk", "full inodes", "not tried", None),
    ]
    words = Namespace(words=["--minutes", "1"])
    text = drill.table(cases, words, 1.0, [struck("", ("rank", ""))] * 7)
    assert "7 kills and stops, 1 promises broken" in " ".join(text.split())
    assert "python scripts/drill.py --minutes 1\n" in text
    assert text.splitlines()[-3:] == [
        "| limits | \\| head -1 | exit code 0 | yes |",
        "| disk | full disk | a traceback | **no** |",
        "| disk | full inodes | not tried |  |",
    ]


def test_a_part_tells_what_came_of_each_case(tmp_path):
    def skips(place):
        raise Skipped("no root")

    def breaks(place):
        place.job((), shell="sleep 100")
        raise Broken("two steps lost")

    place = Place(tmp_path)
    named = {"kept": lambda place: "exit code 0", "odd": skips, "lost": breaks}
    assert list(run_part("part", named, place, lambda text: None)) == [
        Outcome("part", "kept", "exit code 0", True),
        Outcome("part", "odd", "not tried: no root", None),
        Outcome("part", "lost", f"two steps lost ({tmp_path / '001-job'})", False),
    ]
    assert place.jobs[0].process.wait() == -9


def test_every_promise_has_a_test_that_exists():
    text = (ROOT / "docs" / "guarantees.md").read_text()
    tables = text.partition("## The drill")[0]
    promises = [line for line in tables.splitlines() if line.startswith("| ")]
    promises = [line for line in promises if not line.startswith("| promise ")]
    assert len(promises) > 30
    for line in promises:
        assert NAMED.search(line), f"no test: {line}"
    for file, name, part, case in NAMED.findall(text):
        path = ROOT / "tests" / file
        assert path.is_file(), file
        assert f"def {name}(" in path.read_text(), f"{file} has no {name}"
        assert not case or case in neighbours.PARTS[part], f"{part} has no {case}"


def run_drill(tmp_path, *words):
    """Runs a part of the drill, which must keep every promise. Returns: its table."""
    table = tmp_path / "table.md"
    drill = ROOT / "scripts" / "drill.py"
    done = python(drill, *words, "--output", table, "--folder", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    return table.read_text()


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("policy", ["SingleLearnerCoarse", "batches"])
def test_kills(tmp_path, policy):
    text = run_drill(tmp_path, "--only", "kills", "--kills", "6", "--policies", policy)
    assert " 6 kills and stops, 0 promises" in text
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("drill-")]  # none failed


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_soak(tmp_path):
    text = run_drill(tmp_path, "--only", "soak", "--minutes", "4")
    assert text.count("| soak | rank ") == 3
