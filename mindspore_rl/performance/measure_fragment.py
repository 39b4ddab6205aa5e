"""Runs the fragments of a job one by one, without their peers, and measures them.

A fragment's generated code runs as in the job, with its cells, environments and parameters; but
what it sends is dropped, what it receives is there at once, and no checkpoint is written.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.communication.group import HostGroup
from mindspore_rl.environments.registry import spec as environment_spec
from mindspore_rl.performance.cost_tables import Doing, FragmentCosts
from mindspore_rl.performance.measure_cells import env_step_s
from mindspore_rl.performance.sleep_only_job import REHEARSAL_FILE, Rehearsed, without_mindspore
from mindspore_rl.performance.stubs import Nobody, Unheard
from mindspore_rl.plan.edges import plan_edges
from mindspore_rl.plan.plan import Plan, load_plan
from mindspore_rl.plan.stages import Stage, Stages
from mindspore_rl.plan.traffic import CHECKPOINTS, CONTROL
from mindspore_rl.platform import interpreter
from mindspore_rl.platform.user_modules import passing_module
from mindspore_rl.programs import load_trainer
from mindspore_rl.runtime.heartbeat import Stamps
from mindspore_rl.runtime.profile_recorder import COLLECTIVE, RECEIVE, SEND, STAGE, Profile
from mindspore_rl.runtime.profile_recorder import ProfiledCommunicator as Profiled
from mindspore_rl.runtime.rank.fragment_runtime import FragmentRuntime
from mindspore_rl.runtime.rank.messenger import BYTES_TAG, CONTINUE, CONTROL_TAG, RECORDS_TAG, STOP
from mindspore_rl.runtime.rank.rank import Rank
from mindspore_rl.runtime.rank.worker import end_with_parent

COSTS_FILE, BURN = "costs.json", "burn"
MAX_OTHERS = 3
"""Maximum number of fragments that run beside a measured one."""
WARM_UP, WARM_UP_S, MIN, MAX, PHASE_S = 12, 1.0, 4, 200, 0.8
"""Warm-up iterations (3 if they take too long) and seconds, fewest and most iterations of a phase,
and its maximum seconds."""
SAMPLES = 50
"""Samples of each doing that are kept beside the mean."""
READY = "ready"
CALLS = {SEND: "send", RECEIVE: "receive"}
APART = (Stage.ENVIRONMENT, Stage.DATASET, Stage.BOUNDARY)
"""Stages of every rank that are measured as doings."""


class Recorder(Profile):
    """A profile of two phases: in the second, other fragments work on the other cores.

    Attributes:
        over: whether enough is measured.
    """

    def __init__(self, others: "Others") -> None:
        super().__init__(Path(), 0)
        self._others = others
        self.phases: list[list[tuple[int, ...]]] = []
        self._begun, self._count = time.perf_counter(), 0
        self.over = False

    def iteration(self, iteration: int) -> None:
        """See `Profile`."""
        self._count += 1
        now = time.perf_counter()
        if not self.recording:
            if self._count >= WARM_UP or (self._count > 2 and now - self._begun > WARM_UP_S):
                self._begin()
            return
        if self._count < MIN or (self._count < MAX and now - self._begun <= PHASE_S):
            return
        self.phases.append(self._events)
        self.over = len(self.phases) == 2 or not self._others.work()
        self._begin()

    def _begin(self) -> None:
        self._events, self._count, self.recording = [], 0, True
        self._begun = time.perf_counter()

    def write(self) -> None:
        """See `Profile`: writes nothing."""


class Endless(Recorder):
    """A recorder of a fragment that works while others are measured; prints when it has begun."""

    def iteration(self, iteration: int) -> None:
        """See `Profile`."""
        self._count += 1
        if self._count == 2:
            print(READY, flush=True)


class Others:
    """Fragments of the same job that work on the other cores when asked to.

    Args:
        folder: the job's run directory.
        fragments: pairs of a core and a fragment.
    """

    def __init__(self, folder: Path, fragments: list[tuple[int, str]]) -> None:
        self._processes = []
        for core, name in fragments:
            words = ("-m", __spec__.name, str(folder), str(core), name, BURN)
            command = interpreter.command(*words)
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            self._processes.append(process)

    def work(self) -> bool:
        """Resumes the fragments. Returns: whether there are any."""
        for process in self._processes:
            process.send_signal(signal.SIGCONT)
        return bool(self._processes)

    def rest(self) -> None:
        """Suspends the fragments, once all have begun."""
        for process in self._processes:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGSTOP)

    def __enter__(self) -> "Others":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


class Alone(FragmentRuntime):
    """A fragment that runs without its peers, until enough is measured."""

    def _begin(self) -> None:
        """See `FragmentRuntime`: takes no parameters of others."""

    def save(self) -> None:
        """See `FragmentRuntime`: writes nothing."""

    def _agree(self) -> int:
        assert isinstance(self.rank.profile, Recorder)
        return STOP if self.rank.profile.over else CONTINUE


class AloneRehearsed(Alone, Rehearsed):
    """A fragment without its peers that sleeps instead of computing."""


class _Over(Exception):
    """Ends a run when enough is measured."""


class _ServedRecorder(Recorder):
    """A recorder of asynchronous ranks, which do not ask whether to continue."""

    def iteration(self, iteration: int) -> None:
        """See `Profile`."""
        super().iteration(iteration)
        if self.over:
            raise _Over


def measure(plan: Plan, folder: Path, name: str, cores: set[int]) -> FragmentCosts:
    """Measures the first replica of a fragment, first alone, then beside others of its job.

    Args:
        plan: of the job.
        folder: the job's run directory.
        name: of the fragment.
        cores: that the rank has in the job.
    """
    free = sorted(os.sched_getaffinity(0) - cores)[: min(plan.num_ranks - 1, MAX_OTHERS)]
    names = [f.name for f in plan.fragments if f.name != name] or [name]
    chosen = [(core, names[i % len(names)]) for i, core in enumerate(free)]
    with Others(folder, chosen) as others:
        others.rest()
        recorder = (_ServedRecorder if plan.arrivals else Recorder)(others)
        work, step_s = run(plan, folder, name, cores, recorder)
    first, last = next(f.shares[0] for f in plan.fragments if f.name == name)
    phases = [np.array(phase) for phase in recorder.phases]
    return FragmentCosts(last - first, _doings(plan, phases), work, env_step_s=step_s)


def run(
    plan: Plan, folder: Path, name: str, cores: set[int], recorder: Recorder
) -> tuple[dict[str, tuple[float, float, float]], float]:
    """Runs the first replica of a fragment until enough is measured.

    Returns: the work of its cells, and the seconds of an environment step in them; see
        `FragmentCosts`.
    """
    fragment = next(f for f in plan.fragments if f.name == name)
    link = Unheard()
    comm = Profiled(Nobody(plan, fragment.first_rank), recorder) if plan.num_ranks > 1 else None
    group: Any = None
    stamps = Stamps(None, plan.num_ranks)
    rank = Rank(plan, folder, fragment.first_rank, comm, link, stamps, recorder)
    rehearsed = (folder / REHEARSAL_FILE).is_file()
    if fragment.collectives and rehearsed:
        group = lambda _, data: recorder.call(COLLECTIVE, 0, 0, data.nbytes, lambda: data)  # noqa: E731
    elif fragment.collectives:
        group = HostGroup(lambda: lambda _reduction, data: data)
        group.around = lambda *call: recorder.call(COLLECTIVE, *call)
    before = os.sched_getaffinity(0)
    runtime = (AloneRehearsed if rehearsed else Alone)(rank, group, len(cores))
    os.sched_setaffinity(0, cores)
    path = folder / "fragments" / fragment.file
    try:
        alone = f"alone_{abs(hash(str(path)))}"
        with contextlib.suppress(_Over), passing_module(alone, path) as generated:
            generated.run(runtime)
        inside = plan.in_graph and rank.stepping and not rehearsed
        step_s = env_step_s(plan, len(rank.env_indices), len(cores)) if inside else 0.0
    finally:
        os.sched_setaffinity(0, before)
        runtime.close()
        link.close()
    return {f"cell {k}": found.work() for k, found in runtime._cells.native.items()}, step_s


def _doings(plan: Plan, phases: list[np.ndarray]) -> dict[str, Doing]:
    stages = Stages(plan)
    found = [_times(plan, stages, events) for events in phases]
    alone, busy = found[0], found[-1]
    doings = {}
    for name, times in alone.items():
        beside = busy.get(name, times)
        if beside.shape[1] != times.shape[1]:
            beside = times
        chosen = beside[np.linspace(0, len(beside) - 1, min(len(beside), SAMPLES)).astype(int)]
        spread = np.round(chosen / np.maximum(chosen.mean(axis=0), 1e-12), 3)
        idle, work = (tuple(table.mean(axis=0).tolist()) for table in (times, beside))
        doings[name] = Doing(idle, work, tuple(map(tuple, spread.tolist())))
    return doings


def _times(plan: Plan, stages: Stages, events: np.ndarray) -> dict[str, np.ndarray]:
    """Collects the samples of all doings, `[N, pieces]` each, in seconds."""
    samples: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for name, pieces in _measured(plan, stages, events.tolist()):
        samples[name].append(pieces)
    tables = {}
    for name, rows in samples.items():
        length = statistics.mode(len(row) for row in rows)
        tables[name] = np.array([row for row in rows if len(row) == length]) / 1e9
    return tables


def _measured(
    plan: Plan, stages: Stages, events: list[tuple[int, ...]]
) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yields doings and the gaps between them, with the ns of their pieces."""
    tags = {edge.tag: name for name, edge in plan_edges(plan).items()}
    tags |= {CONTROL_TAG: CONTROL, BYTES_TAG: CHECKPOINTS}
    before, ended, at = "", 0, 0
    while at < len(events):
        kind, begin, end, what, *_ = events[at]
        at += 1
        if kind in CALLS and what == RECORDS_TAG:
            continue  # their number is random: part of the gap
        if kind in CALLS:
            name, pieces = f"{CALLS[kind]} {tags[what]}", [float(end - begin)]
        elif kind == STAGE and (name := _name(stages, what)):
            pieces, start = [], begin
            while at < len(events) and events[at][0] == COLLECTIVE:
                pieces.append(float(events[at][1] - start))
                start = events[at][2]
                at += 1
            if at == len(events) or events[at][0] != STAGE:
                continue
            end = events[at][1]
            pieces.append(float(end - start))
        else:
            continue
        if before:
            yield f"{before} > {name}", (float(begin - ended),)
        yield name, tuple(pieces)
        before, ended = name, end


def _name(stages: Stages, stage: int) -> str:
    """Returns a stage's name in a script; empty if it is no doing."""
    words = stages.words[stage]
    if words.startswith("cell "):
        return " ".join(words.split()[:2])
    return Stage(stage).name.lower() if stage in APART else ""


ENDLESS = 10**9
"""Iterations: an asynchronous server would else end with the job, before enough is measured."""


def main() -> None:
    """Measures fragments: `... RUN_DIRECTORY CORES FRAGMENTS`; with `burn`, only runs them."""
    interpreter.look_last()
    interpreter.hasten_mindspore()
    end_with_parent()
    folder, own = Path(sys.argv[1]), {int(core) for core in sys.argv[2].split(",")}
    names, plan = sys.argv[3].split(","), replace(load_plan(folder), num_iterations=ENDLESS)
    if (folder / REHEARSAL_FILE).is_file():
        without_mindspore()
    elif any(fragment.needs_tensors for fragment in plan.fragments):
        from mindspore_rl.platform import mindspore_device  # noqa: PLC0415  (imports MindSpore)

        mindspore_device.use(plan.device, compiled=plan.compiled)
        load_trainer(plan.algorithm, plan.config, environment_spec(plan.environment))
    if sys.argv[4:] == [BURN]:
        run(plan, folder, names[0], own, Endless(Others(folder, [])))
    found = (asdict(measure(plan, folder, name, own)) for name in names)
    (folder / COSTS_FILE).write_text(json.dumps(dict(zip(names, found, strict=True))))


if __name__ == "__main__":
    main()
