"""The drill: its kinds of processes, its table, and one part of it for real."""

import os
import re
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from mindspore_rl.platform import interpreter

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import drill  # noqa: E402 (a script)
from drills import kills, soak  # noqa: E402
from drills.jobs import Case, Place, kind_of  # noqa: E402

PYTHON, RANK = "/usr/bin/python3", ("-m", "mindspore_rl.runtime.rank.worker")
WORKER = [PYTHON, *interpreter.command(*RANK, version=(3, 11))[1:]]
OLDER_WORKER = [PYTHON, *interpreter.command(*RANK, version=(3, 10))[1:]]
MPIEXEC = ["/usr/bin/mpiexec.hydra", "-launcher", "fork", "-n", "2", *WORKER]
REAPER = ["python", "-I", "-S", "/x/mindspore_rl/runtime/coordinator/reaper.py", "1", "mark"]


@pytest.mark.parametrize(
    ("words", "variables", "kind"),
    [
        (WORKER, {"PMI_RANK": "1"}, "rank"),
        (OLDER_WORKER, {"PMI_RANK": "1"}, "rank"),
        (["python", "-m", "mindspore_rl.cli", "train", "ppo"], {}, "coordinator"),
        (MPIEXEC, {}, "mpiexec"),
        (["/usr/bin/hydra_pmi_proxy", "--control-port", "::1:1"], {}, "proxy"),
        ([*REAPER, *MPIEXEC], {}, "reaper"),
        ([*REAPER, "python", "-c", "init()"], {"MS_ROLE": "MS_SCHED"}, "reaper"),
        (["python3.11", "-c", "init()"], {"MS_ROLE": "MS_SCHED"}, "scheduler"),
        (["python", "-c", "time.sleep(9)"], {"PMI_RANK": "1"}, "other"),
        (["/usr/lib/gcc/cc1plus", "-quiet"], {}, "other"),
        ([], {}, "other"),
    ],
)
def test_kinds_of_processes(words, variables, kind):
    assert kind_of(words, variables) == kind


def job(wrong, *strikes):
    work = kills.WORKS[0]
    struck = [kills.Strike(work.name, kind, signal.SIGKILL, came) for kind, came in strikes]
    return kills.Struck(work, struck, wrong, "/folder")


def test_strikes_are_grouped_and_a_wrong_end_counts_against_all_of_a_job():
    done = [
        job("", ("rank", "restarted"), ("rank", "went on"), ("proxy", "restarted")),
        job("lost 3 steps", ("proxy", "restarted")),
        job("did not start"),
    ]
    part = f"kills: {kills.WORKS[0].name}"
    wrong = "lost 3 steps (/folder)"
    assert kills.rows(done) == [
        Case(part, "SIGKILL to proxy, 2 times", f"2 restarted; {wrong}", False),
        Case(part, "SIGKILL to rank, 2 times", "1 restarted, 1 went on; bit-equal", True),
        Case(part, "nothing", "did not start (/folder)", False),
    ]


def test_the_table_is_markdown_and_counts_what_was_broken():
    cases = [
        Case("limits", "| head -1", "exit code 0", True),
        Case("disk", "full\ndisk", "a traceback", False),
        Case("disk", "full inodes", "not tried", None),
    ]
    text = drill.table(cases, Namespace(words=["--minutes", "1"]), 1.0, [job("", ("rank", ""))] * 7)
    assert "7 kills and stops, 1 promises broken" in " ".join(text.split())
    assert "python scripts/drill.py --minutes 1\n" in text
    assert text.splitlines()[-3:] == [
        "| limits | \\| head -1 | exit code 0 | yes |",
        "| disk | full disk | a traceback | **no** |",
        "| disk | full inodes | not tried |  |",
    ]


def test_growth_after_the_warm_up_is_not_flat():
    def samples(values):
        return [soak.Sample(float(i), (v, 0.0, v, 0.0)) for i, v in enumerate(values)]

    warming = samples([1000.0, 90_000.0] + [100_000.0] * 38)
    growing = samples([100_000.0 + 500 * i for i in range(40)])
    assert soak.flat(warming, 0)
    assert not soak.flat(growing, 0)
    assert soak.slope(growing, 0) == pytest.approx(500 * 3600)
    assert not soak.flat(samples([9.0] * 35 + [10.0] * 5), 2)  # one descriptor more


def test_what_a_job_leaves_is_found(tmp_path):
    place = Place(tmp_path)
    shell = 'echo half > a.tmp; touch "$TMPDIR/file"; setsid sleep 100 & exit 3'
    job = place.job((), shell=shell)
    assert job.wait(10.0) == 3
    found = job._look()
    job.kill()
    assert any(text.startswith("other ") for text in found)
    assert {str(tmp_path / "001-job" / "a.tmp"), str(job.temporary / "file")} <= set(found)
    assert not job.processes()


NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def test_every_promise_has_a_test_that_exists():
    text = (ROOT / "docs" / "guarantees.md").read_text()
    tables = text.partition("## The drill")[0]
    promises = [line for line in tables.splitlines() if line.startswith("| ")]
    promises = [line for line in promises if not line.startswith("| promise ")]
    assert len(promises) > 30
    for line in promises:
        assert NAMED.search(line), f"no test: {line}"
    for file, name in NAMED.findall(text):
        path = ROOT / "tests" / file
        assert path.is_file(), file
        assert f"def {name}(" in path.read_text(), f"{file} has no {name}"


def run_drill(tmp_path, *words):
    """Runs a part of the drill, which must keep every promise. Returns: its table."""
    table = tmp_path / "table.md"
    command = [sys.executable, str(ROOT / "scripts" / "drill.py"), *words]
    done = subprocess.run(
        [*command, "--output", str(table), "--folder", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return table.read_text()


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("policy", ["SingleLearnerCoarse", "Central by arrival"])
def test_kills(tmp_path, policy):
    text = run_drill(tmp_path, "--only", "kills", "--kills", "6", "--policies", policy)
    assert " 6 kills and stops, 0 promises" in text
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("drill-")]  # none failed


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("part", [*drill.SMALL])
def test_part(tmp_path, part):
    if part == "disk" and os.getuid():
        pytest.skip("only root can mount a small disk")
    assert f"\n| {part} | " in run_drill(tmp_path, "--only", part)


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_soak(tmp_path):
    text = run_drill(tmp_path, "--only", "soak", "--minutes", "4")
    assert text.count("| soak | rank ") == 3
