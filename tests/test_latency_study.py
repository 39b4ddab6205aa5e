"""The studies: their pages show the measured values, and what their harness writes is read back."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import study  # noqa: E402 (a folder of scripts)

from tests.commands import python  # noqa: E402


def test_table_of_a_page_is_of_the_measurements():
    words = ("scripts/family_study.py", "--from", "docs/families.csv")
    table = python(*words, check=True, cwd=ROOT).stdout
    assert table.startswith("| ms an iteration | ")
    assert table in (ROOT / "docs" / "choosing_a_policy.md").read_text()


def test_report_of_accuracy_is_of_the_measurements(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    words = ("report", "docs/scaling/accuracy.csv", "--plot", tmp_path / "accuracy.svg")
    done = python("scripts/scaling_accuracy.py", *words, check=True, cwd=ROOT)
    page = (ROOT / "docs/scaling/accuracy.md").read_text()
    assert done.stdout.count("\n") > 100
    assert [line for line in done.stdout.splitlines() if line not in page] == []
    assert "<svg" in (tmp_path / "accuracy.svg").read_text()


def test_rows_are_read_as_they_were_written(tmp_path):
    rows = [{"policy": "Central", "ms": 1.5}, {"policy": "GPUOnly", "ranks": 2, "ms": 0}]
    study.write(rows, tmp_path / "rows.csv", ("policy", "ranks", "ms"))
    assert study.read(tmp_path / "rows.csv") == rows


def test_a_table_has_a_line_for_each_row_that_has_a_number():
    cells = [("a", "1", ""), ("b", "1", "5"), ("b", "2", ""), ("c", "2", "7")]
    expected = ["| policy | 1 | 2 |", "|---|---|---|", "| b | 5 |  |", "| c |  | 7 |"]
    assert study.pivot("policy", cells).splitlines() == expected
    assert study.pivot("policy", cells[:1]) == ""
    assert study.spread([3.0, 1.0, 1200.0]) == "3 (1-1,200)"


def test_a_command_has_flags_and_keys():
    keys = {"hidden": (256, 16), "env": "CartPole-v1", "learning_rate": 1e-9}
    command = study.msrl("train", "ppo", keys=keys, quiet=True, total_steps=5, schedule=None)
    assert command[1:6] == ["-m", "mindspore_rl.cli", "train", "ppo", "--quiet"]
    assert command[6:8] == ["--total-steps", "5"]
    assert command[8:] == ["hidden=[256, 16]", "env=CartPole-v1", "learning_rate=1e-09"]


def test_a_job_that_is_not_possible_is_told_from_one_that_failed():
    with pytest.raises(study.NotMeasured, match="ppp") as found, study.trained("ppp"):
        pass
    assert found.value.refused
