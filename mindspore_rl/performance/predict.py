"""Predicts the time of a job on a cluster: measures unknown costs, then simulates."""

import contextlib
import hashlib
import json
import os
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import mindspore_rl
from mindspore_rl.compiler.ir.ir import Program
from mindspore_rl.compiler.pipeline import JobRequest, prepare
from mindspore_rl.errors import MsrlError
from mindspore_rl.performance import cost_tables as costs
from mindspore_rl.performance import measure_fragment, measure_network, sleep_only_job
from mindspore_rl.performance.cluster import Cluster
from mindspore_rl.performance.cost_tables import FragmentCosts, LinkCosts, MachineCosts
from mindspore_rl.performance.simulate import Simulation, Simulator
from mindspore_rl.plan.deployment import Deployment, find_mpiexec
from mindspore_rl.plan.edges import plan_edges
from mindspore_rl.plan.plan import FragmentPlan, Plan
from mindspore_rl.plan.reading import read
from mindspore_rl.platform import interpreter, resources
from mindspore_rl.platform.cache import in_cache, keep
from mindspore_rl.runtime.coordinator.launch import guarded, mpi_options

MACHINE_FILE = "costs/machine.json"
ITERATIONS, FEWER, MANY_RANKS = 24, 4, 16
"""Simulated iterations, and those of jobs with many ranks; the first is discarded."""
LINKS_S, ALONE_S = 120.0, 600.0
FRACTION = re.compile(r"\b\d+(?:\.\d+(?:e[+-]?\d+)?|e-\d+)\b")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Prediction:
    """A job's predicted time."""

    plan: Plan
    simulation: Simulation

    @property
    def steps_per_s(self) -> float:
        """Environment steps per second, over all environments."""
        return self.plan.steps_per_iteration / self.simulation.iteration_s


@dataclass(frozen=True)
class Job:
    """A planned job with the measured costs of its fragments.

    Attributes:
        programs: of each fragment, with regions.
    """

    plan: Plan
    programs: dict[str, Program]
    costs: dict[str, FragmentCosts]

    def on(self, cluster: Cluster, hosts: tuple[str, ...] = ()) -> Prediction:
        """Simulates the job with its ranks on some hosts; without hosts on one."""
        plan = replace(self.plan, hosts=hosts)
        iterations = ITERATIONS if plan.num_ranks < MANY_RANKS else FEWER
        simulator = Simulator(plan, self.programs, self.costs, cluster)
        return Prediction(plan, simulator.run(iterations + plan.lag))


def job_of(request: JobRequest, say: Say, anew: bool = False, most_ranks: int | None = None) -> Job:
    """Plans a job for this machine's processor, and measures its unknown costs.

    Args:
        request: of the job.
        say: called with what is being measured.
        anew: measures the fragments again.
        most_ranks: the largest number of ranks allowed.

    Raises:
        MsrlError: the job cannot be planned, has too many ranks, or a fragment does not run here.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, seen = Path(name), dict[str, Any]()
        here = replace(request, device="CPU", deployment=Deployment())
        plan, _ = prepare(here, folder, seen.__setitem__)
        if most_ranks is not None and plan.num_ranks > most_ranks:
            raise MsrlError(f"it needs {plan.num_ranks} ranks, and there is room for {most_ranks}")
        return Job(plan, seen["regions"], fragment_costs(plan, folder, say, anew))


def by_rows(
    request: JobRequest, num_envs: Sequence[int], say: Say
) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Measures cells and environment steps again, for several numbers of environments.

    Args:
        request: of the job.
        num_envs: of the whole job; invalid numbers are skipped, with a note.
        say: called with what is being measured.

    Returns: by fragment and doing, (environments of a replica, seconds) in ascending order.
    """
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for number in sorted(set(num_envs)):
        try:
            job = job_of(
                replace(request, config=replace(request.config, num_envs=number)), say, anew=True
            )
        except MsrlError as error:
            say(f"num_envs={number} is left out: {str(error).splitlines()[0]}")
            continue
        for name, known in job.costs.items():
            for what, doing in known.doings.items():
                if ">" not in what and (what.startswith("cell ") or what == "environment"):
                    times = found.setdefault((name, what), [])
                    times.append((known.environments, sum(doing.alone)))
    return found


def rehearsed(request: JobRequest, folder: Path, sleeps: sleep_only_job.Sleeps) -> Job:
    """Plans and measures a job whose cells and environments only sleep, see `sleep_only_job`."""
    seen = dict[str, Any]()
    plan, _ = prepare(replace(request, device="CPU", cells="mindspore"), folder, seen.__setitem__)
    plan = sleep_only_job.write(
        plan, folder, sleep_only_job.parts_of(plan, seen["regions"], sleeps)
    )
    found = _measured(plan, folder, list(plan.fragments))
    for name, known in found.items():
        asleep = tuple(k for k in known.doings if k.startswith("cell ") or k == "environment")
        found[name] = replace(known, asleep=asleep)
    return Job(plan, seen["regions"], found)


def predict(
    request: JobRequest,
    cluster: Cluster,
    say: Say,
    device: str = "CPU",
    anew: bool = False,
    most_ranks: int | None = None,
) -> Prediction:
    """Predicts a job on its deployment, whose hosts have slots for ranks by their `device`s.

    See `job_of` for the other arguments.
    """
    job = job_of(request, say, anew, most_ranks)
    ranks = job.plan.num_ranks
    return job.on(cluster, () if ranks == 1 else request.deployment.place(ranks, device))


def fragment_costs(
    plan: Plan, folder: Path, say: Say, anew: bool = False
) -> dict[str, FragmentCosts]:
    """Returns the costs of a replica of each fragment; measures those that are not cached."""
    names = {f.name: _name(plan, folder, f) for f in plan.fragments}
    lacking = [f for f in plan.fragments if anew or in_cache(names[f.name]) is None]
    found: dict[str, FragmentCosts] = {}
    if lacking:
        listed = ", ".join(f"{f.name} of {len(range(*f.shares[0]))}" for f in lacking)
        say(f"measuring {plan.policy}: {listed} environments")
        found = _measured(plan, folder, lacking)
        for name, measured in found.items():
            keep(names[name], json.dumps(asdict(measured)).encode())
    return {
        name: found.get(name) or read(FragmentCosts, _kept(file)) for name, file in names.items()
    }


def _kept(name: str) -> dict[str, Any]:
    path = in_cache(name)
    assert path is not None
    return json.loads(path.read_text())


def _measured(plan: Plan, folder: Path, fragments: list[FragmentPlan]) -> dict[str, FragmentCosts]:
    """Measures fragments in a separate process, on the cores that a rank would have."""
    cores = sorted(os.sched_getaffinity(0))
    each = max(len(cores) // plan.num_ranks, 1)
    names = ",".join(f.name for f in fragments)
    own = ",".join(map(str, cores[:each]))
    command = interpreter.command("-m", measure_fragment.__name__, str(folder), own, names)
    _run(command, ALONE_S, f"{plan.policy} cannot be measured here")
    return read(
        dict[str, FragmentCosts], json.loads((folder / measure_fragment.COSTS_FILE).read_text())
    )


def _run(
    command: list[str], timeout_s: float, what: str, guard: bool = False, **variables: str
) -> None:
    """Runs a program. Raises: MsrlError: it fails; tells its last output."""
    environment = {**variables, **os.environ, **interpreter.environment(), "HWLOC_XMLFILE": ""}
    if guard:
        environment = guarded(environment)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MsrlError(f"{what}: it took more than {timeout_s:g} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise MsrlError(f"{what}: {lines[-1] if lines else f'exit code {done.returncode}'}")


def _name(plan: Plan, folder: Path, fragment: FragmentPlan) -> str:
    """Names the cached costs of a fragment by a hash of all that they depend on.

    The length of a job, its seed and the fractions in its source, such as a schedule's slope,
    change no cost.
    """
    source = (folder / "fragments" / fragment.file).read_text()
    text = json.dumps(
        [
            FRACTION.sub("", source),
            Path(plan.algorithm["file"]).read_text(),
            plan.environment,
            {
                key: value
                for key, value in plan.config.items()
                if key not in ("seed", "total_steps")
            },
            fragment.shares[0],
            fragment.agents[:1],
            _exchanged(plan, fragment),
            plan.cells,
            max(len(os.sched_getaffinity(0)) // plan.num_ranks, 1),
            about(),
            Path(measure_fragment.__file__).read_text(),  # a new way to measure gives new costs
        ],
        default=str,
    )
    return _hashed("fragment", text.replace(str(folder), ""))


def _hashed(kind: str, text: str) -> str:
    """Names cached costs by a hash of all that they depend on."""
    return f"costs/{kind}-{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def _exchanged(plan: Plan, fragment: FragmentPlan) -> list[tuple[str, bool, list[int]]]:
    """Returns the bytes of each message that a fragment's first replica sends or receives."""
    return [
        (name, sent, [edge.size(i, j) for i, j in edge.pairs if (i if sent else j) == 0])
        for name, edge in plan_edges(plan).items()
        for sent, end in ((True, edge.source), (False, edge.target))
        if end.name == fragment.name
    ]


def about() -> dict[str, str]:
    """Describes the machine and the versions that costs depend on."""
    processor = "unknown"
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        found = next(line for line in lines if line.startswith("model name"))
        processor = found.partition(":")[2].strip()
    return {
        "processor": processor,
        "cores": str(resources.available_cores()),
        "python": platform.python_version(),
        "mindspore_rl": mindspore_rl.__version__,
        "measured by": hashlib.sha256(Path(measure_network.__file__).read_bytes()).hexdigest()[:8],
    }


def link_between(deployment: Deployment, say: Say, anew: bool = False) -> LinkCosts:
    """Returns the costs of messages between a deployment's first two hosts; measured or cached.

    Raises:
        MsrlError: ranks cannot be started on these hosts.
    """
    name = _hashed("link", json.dumps([asdict(deployment), about()], default=str))
    if anew or in_cache(name) is None:
        pair = tuple(host.name for host in deployment.hosts[:2])
        say(f"measuring messages between {pair[0]} and {pair[1]}")
        with tempfile.TemporaryDirectory() as folder:
            keep(name, json.dumps(_linked(deployment, pair, Path(folder))).encode())
    return read(LinkCosts, _kept(name))


def _linked(deployment: Deployment, hosts: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """Measures messages between two ranks, both on this host or on two hosts."""
    file, far = folder / "links.json", [measure_network.FAR] if hosts else []
    command = [find_mpiexec(), *mpi_options(deployment, hosts, folder), "-n", "2"]
    command += interpreter.command("-m", measure_network.__name__, str(file), *far)
    what = f"messages cannot be measured between {' and '.join(hosts) or 'two ranks here'}"
    _run(command, LINKS_S, what, guard=not hosts, UCX_TLS="^posix" if hosts else "self,sysv")
    found = json.loads(file.read_text())
    return found["link"] if hosts else found


def machine_costs(say: Say, anew: bool = False) -> MachineCosts:
    """Returns this machine's costs of messages; measured, or cached if of the same machine.

    Raises:
        MsrlError: MPI does not run here.
    """
    here, path = about(), in_cache(MACHINE_FILE)
    if path is not None and not anew:
        with contextlib.suppress(MsrlError):
            known = costs.load_machine(path)
            if {key: known.about.get(key) for key in here} == here:
                return known
            say("the costs that are kept are of another machine or version: measuring again")
    say("measuring messages between two ranks")
    with tempfile.TemporaryDirectory() as folder:
        found = _linked(Deployment(), (), Path(folder))
    date = {"date": time.strftime("%Y-%m-%d")}
    cores = resources.available_cores()
    found["near"] = read(LinkCosts, found.pop("link"))
    made = MachineCosts(cores=cores, about={**here, **date}, **found)
    keep(MACHINE_FILE, json.dumps(asdict(made), indent=1).encode())
    return made
