"""The rows of chaos as tests, each with a promise; `scripts/drill.py` is their long run."""

import random

import pytest

from mindspore_rl.platform import interpreter
from tests.chaos import neighbours, plans, soak, strikes
from tests.chaos.jobs import Outcome, Place, Skipped, kind_of

RANK = ("-m", "mindspore_rl.runtime.rank.worker")
kill, slow, multiprocess = pytest.mark.kill, pytest.mark.slow, pytest.mark.multiprocess


@kill
@multiprocess
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, id=f"{part}: {name}", marks=() if getattr(case, "quick", False) else slow
        )
        for part, named in neighbours.PARTS.items()
        for name, case in named.items()
    ],
)
def test_case(place, case):
    try:
        case(place)
    except Skipped as reason:
        pytest.skip(str(reason))


# ---- restarts and resumed jobs -------------------------------------------------------------------


@pytest.fixture(scope="module")
def struggle(tmp_path_factory):
    """One for all: a job runs undisturbed only once."""
    struggle = strikes.Struggle(Place(tmp_path_factory.mktemp("struggle")))
    yield struggle
    struggle.place.kill()


RANKS = ("reaper", "mpiexec", "proxy", "rank 0", "rank 1")
SCHEDULER = ("scheduler's reaper", "scheduler")


@kill
@multiprocess
@slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("at", [0.0, 0.3, 0.8], ids=["start", "middle", "end"])
@pytest.mark.parametrize("whom", [*strikes.ABOVE, *RANKS, *SCHEDULER])
def test_a_job_whose_process_is_killed_ends_as_if_undisturbed(struggle, whom, at):
    work = strikes.MINDSPORE if whom in SCHEDULER else strikes.GPU_ONLY
    struck = struggle.one(work, plans.once(whom, at))
    assert struck.wrong == ""
    assert struck.restarts == (whom not in strikes.ABOVE)


@kill
@multiprocess
@slow
@pytest.mark.timeout(7200)
def test_twenty_kills_in_a_row(struggle, cells):
    plan = plans.AtMoments(random.Random(0), each=5)
    struck = struggle.one(strikes.LONG[cells], plan)
    assert struck.wrong == ""
    assert struck.restarts == plan.counts.total() >= 20


# ---- the library ---------------------------------------------------------------------------------


def worker(minor):
    return ["/usr/bin/python3", *interpreter.command(*RANK, version=(3, minor))[1:]]


MPIEXEC = ["/usr/bin/mpiexec.hydra", "-launcher", "fork", "-n", "2", *worker(11)]
REAPER = ["python", "-I", "-S", "/x/mindspore_rl/runtime/coordinator/reaper.py", "1", "mark"]
OF_SCHEDULER = {"MS_ROLE": "MS_SCHED"}


@pytest.mark.parametrize(
    ("words", "variables", "kind"),
    [
        (worker(11), {"PMI_RANK": "1"}, "rank"),
        (worker(10), {"PMI_RANK": "1"}, "rank"),
        (["python", "-m", "mindspore_rl.cli", "train", "ppo"], {}, "coordinator"),
        (MPIEXEC, {}, "mpiexec"),
        (["/usr/bin/hydra_pmi_proxy", "--control-port", "::1:1"], {}, "proxy"),
        ([*REAPER, *MPIEXEC], {}, "reaper"),
        ([*REAPER, "python", "-c", "init()"], OF_SCHEDULER, "scheduler's reaper"),
        (["python3.11", "-c", "init()"], OF_SCHEDULER, "scheduler"),
        (["python", "-c", "time.sleep(9)"], {"PMI_RANK": "1"}, "other"),
        (["/usr/lib/gcc/cc1plus", "-quiet"], {}, "other"),
        ([], {}, "other"),
    ],
)
def test_kinds_of_processes(words, variables, kind):
    assert kind_of(words, variables) == kind


def test_what_a_job_leaves_is_found(place, tmp_path):
    shell = 'echo half > a.tmp; touch "$TMPDIR/file"; setsid sleep 100 & exit 3'
    job = place.job((), shell=shell)
    assert job.wait(10.0) == 3
    found = job._look()
    job.kill()
    assert any(text.startswith("other ") for text in found)
    assert {str(tmp_path / "001-job" / "a.tmp"), str(job.temporary / "file")} <= set(found)
    assert not job.processes()


def struck(wrong, *came):
    work = strikes.WORKS[0]
    found = [strikes.Strike(work.name, kind, plans.SIGNALS[0], how) for kind, how in came]
    return strikes.Struck(work, found, wrong, "/folder")


def test_strikes_are_grouped_and_a_wrong_end_counts_against_all_of_a_job():
    done = [
        struck("", ("rank", "restarted"), ("rank", "went on"), ("proxy", "restarted")),
        struck("lost 3 steps", ("proxy", "restarted")),
        struck("did not start"),
    ]
    part = f"kills: {strikes.WORKS[0].name}"
    wrong = "lost 3 steps (/folder)"
    assert strikes.rows(done) == [
        Outcome(part, "SIGKILL to proxy, 2 times", f"2 restarted; {wrong}", False),
        Outcome(part, "SIGKILL to rank, 2 times", "1 restarted, 1 went on; bit-equal", True),
        Outcome(part, "nothing", "did not start (/folder)", False),
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
