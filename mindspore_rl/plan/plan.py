"""The plan: everything a worker needs, as generated sources and one JSON file.

A worker never reads the algorithm's loop or the policy: it imports the source of its fragment and
looks up its rank, its share of the environments and its messages here.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mindspore_rl.environments.layout import Layout
from mindspore_rl.errors import MsrlError
from mindspore_rl.plan.reading import read
from mindspore_rl.plan.value import Value
from mindspore_rl.platform.cache import write_file
from mindspore_rl.platform.user_modules import FOLDER, as_recorded, kept, unchanged_environment

PLAN_FILE, JOB_FILE = "plan.json", "job.json"
GRAPH_FILE, OUTCOME_FILE = "graph.svg", "outcome.json"
STATE = "env_state"
"""Name of the variable that holds an in-graph environment's state."""
SHUFFLES = "shuffles"
"""Name of the variables that count the shuffles of minibatches under a condition."""


@dataclass(frozen=True)
class Arrivals:
    """An asynchronous schedule: one fragment serves the replicas of another as messages arrive.

    Attributes:
        sender: the fragment whose replicas are served.
        consumer: the fragment that serves them.
        staleness: maximum number of updates between the parameters that a replica of the sender
            read and those that its message meets.
        drop_stale: whether a staler message is dropped; else its sender waits before it begins.
        gather: number of replicas whose rows of environments make one batch of a consumer; 0: the
            messages carry no rows, and each replica is served with sums over its own samples.
        kept: whether the consumer keeps the rows as records; a batch may then have messages of
            several iterations of one replica.
        consumers: replicas of the consumer. Each serves as many replicas of the sender, and they
            make each update together, of a batch each.
    """

    sender: str
    consumer: str
    staleness: int
    drop_stale: bool
    gather: int = 0
    kept: bool = False
    consumers: int = 1


@dataclass(frozen=True)
class FragmentPlan:
    """One fragment: its source and its replicas, on consecutive ranks.

    Attributes:
        shares: first and last environment (exclusive) of each replica.
        agents: first and last agent (exclusive) of each replica, in a multi-agent environment.
        cells: names of the compiled cells; those with collectives are also in `collectives`.
        lag: number of iterations that the parameters of its second actor are older, which acts; 0:
            it has no second actor.
    """

    name: str
    file: str
    first_rank: int
    shares: tuple[tuple[int, int], ...]
    components: tuple[str, ...]
    cells: tuple[str, ...]
    collectives: tuple[str, ...]
    needs_tensors: bool
    agents: tuple[tuple[int, int], ...] = ()
    lag: int = 0

    @property
    def ranks(self) -> range:
        """The ranks of the fragment's replicas."""
        return range(self.first_rank, self.first_rank + len(self.shares))


@dataclass(frozen=True)
class MessagePlan:
    """One cut edge.

    Attributes:
        values: what is sent, in order; empty for parameters.
        parameters: which parameters are sent: `actor`, `all`, or empty.
        partial: for each value, whether the target sums the terms of all senders.
        pattern: the collective that the two layouts amount to.
        times: messages from one replica to another in an iteration; 0: one, before the first
            iteration.
        parameter_bytes: size of a parameter message.
        conditional: whether a condition of the program decides if it is sent; `times` is then a
            bound.
        asynchronous: whether each replica of the source or target is served by itself.
        chunks: number of chunks of environments that are sent as separate messages.
        lag: number of messages that wait at the target for their use; at first these are the
            initial parameters. The target uses what the source sent `lag` iterations before.
    """

    name: str
    mark: str
    source: str
    target: str
    values: tuple[Value, ...]
    parameters: str
    partial: tuple[bool, ...]
    pattern: str
    times: int
    parameter_bytes: int = 0
    conditional: bool = False
    asynchronous: bool = False
    chunks: int = 1
    lag: int = 0


@dataclass(frozen=True)
class ReductionPlan:
    """One collective over the replicas of a fragment, inside one of its cells.

    Attributes:
        name: of the reduced operation and the fragment, such as `mean#1 over actor`.
        fragment: the fragment whose replicas take part.
        reduction: `sum`, `max` or `min`.
        message_bytes: bytes that each replica contributes.
        times: calls of each replica in an iteration; 0: one, before the first.
        conditional: see `MessagePlan`.
    """

    name: str
    fragment: str
    reduction: str
    message_bytes: int
    times: int
    conditional: bool = False


@dataclass(frozen=True)
class ReplayPlan:
    """A kept replay.

    Attributes:
        per_iteration: records of each environment that an iteration inserts.
        capacity: the newest records of each environment that are kept.
        by_priority: whether they are drawn by priority.
    """

    per_iteration: int = 0
    capacity: int = 0
    by_priority: bool = False


@dataclass(frozen=True)
class Plan:
    """A distributed job: its program's fragments, ranks, messages and settings.

    Attributes:
        algorithm: its name, the run's copy of its file and the package that it belongs to.
        config: the algorithm's configuration.
        steps_per_env: steps of each environment in an iteration.
        replays: the kept replays by name; the one without a name has an empty one.
        checkpoint_replay: whether checkpoints contain them.
        resume: a checkpoint to start from.
        load_at: checkpoints to load before given iterations (tests of equality).
        profile: number of iterations that every rank profiles.
        record: marks whose values are written to files every iteration.
        hosts: the name of each rank's host; empty: all on this machine.
        arrivals: the asynchronous schedule, if there is one.
        chunks: number of chunks of environments that are stepped separately.
        parts: first and last environment (exclusive) of each part that one fragment acts for as
            soon as the part is ready; empty: it acts for all together.
        cells: `native` if cells become native code where possible, else `mindspore`.
        parameters: shapes of all parameters, by name.
        library: the library of the environment, from its spec.
        action_mask: whether it gives an action mask; None in a plan of an earlier version.
        layout: of the environment's own observations, from its spec.
    """

    algorithm: dict[str, str]
    policy: str
    config: dict[str, Any]
    environment: str
    in_graph: bool
    num_envs: int
    num_steps: int
    steps_per_env: int
    num_iterations: int
    seed: int
    carried: dict[str, Value]
    fragments: tuple[FragmentPlan, ...]
    messages: tuple[MessagePlan, ...]
    reductions: tuple[ReductionPlan, ...] = ()
    compiled: bool = True
    device: str = "CPU"
    cells: str = "mindspore"
    workers: int = 1
    timeout_s: float = 60.0
    replay_dir: str = ""
    profile: int = 0
    resume: str = ""
    load_at: dict[str, str] = field(default_factory=dict)
    record: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    chunks: int = 1
    arrivals: Arrivals | None = None
    parameters: dict[str, tuple[int, ...]] = field(default_factory=dict)
    library: str = ""
    action_mask: bool | None = None
    layout: Layout | None = None
    parts: tuple[tuple[int, int], ...] = ()
    checkpoint_replay: bool = True
    replays: dict[str, ReplayPlan] = field(default_factory=dict)

    @property
    def leader(self) -> int:
        """The rank that passes on requests to stop or to write a checkpoint."""
        if self.arrivals is None:
            return 0
        return next(f.first_rank for f in self.fragments if f.name == self.arrivals.consumer)

    @property
    def lag(self) -> int:
        """The number of iterations that the actors' parameters are older."""
        lags = [message.lag for message in self.messages]
        return max(lags + [fragment.lag for fragment in self.fragments])

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of an iteration, over all environments."""
        return self.steps_per_env * self.num_envs

    @property
    def steps_per_update(self) -> int:
        """Environment steps of an update with asynchronous batches, see `Arrivals.gather`."""
        assert self.arrivals is not None
        consumer = next(f for f in self.fragments if f.name == self.arrivals.consumer)
        return self.steps_per_env * sum(len(range(*share)) for share in consumer.shares)

    @property
    def last_step(self) -> int:
        """Environment steps at which the job ends."""
        return self.num_iterations * self.steps_per_iteration

    @property
    def num_ranks(self) -> int:
        """Number of processes of the job."""
        return sum(len(fragment.shares) for fragment in self.fragments)

    @property
    def group_ranks(self) -> tuple[int, ...]:
        """Ranks whose cells hold MindSpore's collectives; native cells use MPI's."""
        if self.cells == "native":
            return ()
        return tuple(
            rank for fragment in self.fragments if fragment.collectives for rank in fragment.ranks
        )

    @property
    def in_one_process(self) -> bool:
        """True if the job runs in the process that planned it; jobs on GPUs have their own."""
        return not self.compiled or (self.num_ranks == 1 and self.device == "CPU")

    def fragment_of(self, rank: int) -> tuple[FragmentPlan, int]:
        """Returns the fragment and the replica that a rank runs."""
        for fragment in self.fragments:
            if rank in fragment.ranks:
                return fragment, rank - fragment.first_rank
        raise KeyError(rank)

    def gpu_of(self, rank: int) -> tuple[int, int] | None:
        """Returns a rank's place among its host's ranks with tensors, and the group's ranks there.

        The group's ranks come first and need a GPU each; place p of n GPUs takes the GPU p modulo
        n. None for a rank without tensors.
        """
        near = [
            r
            for r in range(self.num_ranks)
            if self.same_host(r, rank) and self.fragment_of(r)[0].needs_tensors
        ]
        near.sort(key=lambda r: r not in self.group_ranks)
        if rank not in near:
            return None
        return near.index(rank), sum(r in self.group_ranks for r in near)

    def same_host(self, rank: int, other: int) -> bool:
        """Returns whether two ranks are on one host."""
        return not self.hosts or self.hosts[rank] == self.hosts[other]

    def rank_name(self, rank: int) -> str:
        """Names a rank: `rank 2 (actor[1])`, or `rank 2 (actor[1] on node2)` on several hosts."""
        fragment, replica = self.fragment_of(rank)
        host = f" on {self.hosts[rank]}" if self.hosts else ""
        return f"rank {rank} ({fragment.name}[{replica}]{host})"


def save_plan(plan: Plan, folder: Path) -> None:
    """Writes `plan.json`."""
    write_file(folder / PLAN_FILE, json.dumps(asdict(plan), indent=1))


def load_plan(folder: Path) -> Plan:
    """Reads `plan.json`.

    Raises:
        MsrlError: there is no such file, or it is of another version.
    """
    path = folder / PLAN_FILE
    try:
        text = path.read_bytes()
    except (OSError, ValueError) as error:  # the path contains a NUL
        why = f"{folder} is not a run directory ({getattr(error, 'strerror', error)})"
        raise MsrlError(f"{why}; expected one that `msrl train` wrote") from error
    try:
        data = json.loads(text)
        if "file" in data["algorithm"]:  # the run may have been moved
            data["algorithm"]["file"] = str(kept(folder / FOLDER, data["algorithm"]["file"]))
        data["environment"] = unchanged_environment(as_recorded(data), folder)
        _rename_former_keys(data)
        return read(Plan, data)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise MsrlError(
            f"{path} was not written by this version of mindspore_rl ({type(error).__name__}: "
            f"{error}); train again, or use the version that wrote it"
        ) from error


def _rename_former_keys(data: dict[str, Any]) -> None:
    """Gives what earlier versions wrote into a plan the form that it has now."""
    per_env, kept_per_env = data.pop("records_per_env", 0), data.pop("records_kept", 0)
    replays = data.pop("named_replays", {}) | ({"": (per_env, kept_per_env)} if per_env else {})
    for name, (each, capacity) in replays.items():
        data.setdefault("replays", {})[name] = asdict(ReplayPlan(each, capacity))
    for message in data["messages"]:
        if "by_arrival" in message:
            message["asynchronous"] = message.pop("by_arrival")
