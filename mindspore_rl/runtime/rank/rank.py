"""One process of a job: its place in the plan, and its lines to the others."""

import functools
import threading
from pathlib import Path

from mindspore_rl.communication.communicator import Communicator
from mindspore_rl.communication.link import Link
from mindspore_rl.environments import registry
from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.plan.plan import FragmentPlan, Plan
from mindspore_rl.plan.stages import Stage, Stages
from mindspore_rl.rl.random import Agents
from mindspore_rl.runtime.heartbeat import Stamps
from mindspore_rl.runtime.profile_recorder import Profile
from mindspore_rl.runtime.rank.background import Background
from mindspore_rl.runtime.rank.episodes import Goal
from mindspore_rl.runtime.rank.messenger import CHECKPOINT, CONTINUE, STOP, Messenger

METRICS_WAIT_S = 0.05


class Rank:
    """Identity of a rank, its stamps and its connections to coordinator and peers.

    Args:
        number: in MPI's order.
        comm: None in a job of one rank.

    Attributes:
        fragment: that the rank runs.
        replica: index among the fragment's replicas.
        env_indices: global indices of the rank's environments.
        agents: the rank's agents; None in an environment of a single agent.
        iteration: current iteration; the worker's own in an asynchronous job.
        env_steps: of the whole job, as far as this rank knows.
        profile: records events of some iterations; None: no profile.
        goal: at which the only rank of a job ends it; None: it waits for the coordinator's command.
        background: writes to the disk beside the training.
    """

    def __init__(
        self,
        plan: Plan,
        run_dir: Path,
        number: int,
        comm: Communicator | None,
        link: Link,
        stamps: Stamps,
        profile: Profile | None = None,
        goal: Goal | None = None,
    ) -> None:
        self.plan, self.run_dir, self.number, self.link = plan, run_dir, number, link
        self.fragment, self.replica = plan.fragment_of(number)
        self.env_indices = range(*self.fragment.shares[self.replica])
        self.agents = _agents(self.fragment, self.replica)
        self.iteration = 0
        self.env_steps = 0
        self.stages, self.profile, self.goal = Stages(plan), profile, goal
        self.background = Background()
        self.messenger = Messenger(comm, self.stamp, self._waiting)
        self._stamps, self._stage = stamps, int(Stage.STARTING)
        self._listening, self._command = threading.Lock(), CONTINUE
        self._logged = threading.Semaphore(0)  # checkpoints whose metrics are in their file

    def stamp(self, stage: int) -> None:
        """Stamps the stage that this rank enters, for the stall detector."""
        self._stage = stage
        self._stamps.write(self.number, self.iteration, stage)
        if self.profile is not None:
            self.profile.stage(stage)

    @functools.cached_property
    def spec(self) -> EnvironmentSpec:
        """The environment's spec, for which one is built."""
        return registry.spec(self.plan.environment)

    @property
    def iterations_done(self) -> int:
        """Iterations of the job: those of whose steps all are done; names checkpoints."""
        return self.env_steps // self.plan.steps_per_iteration

    @property
    def stage(self) -> str:
        """The current stage, in words."""
        return self.stages.words[self._stage]

    @property
    def served(self) -> bool:
        """True if the rank is an asynchronous worker, which counts its own iterations."""
        arrivals = self.plan.arrivals
        return arrivals is not None and arrivals.sender == self.fragment.name

    @property
    def stepping(self) -> bool:
        """True if the rank steps environments."""
        return "environment" in self.fragment.components

    def note(self, text: str) -> None:
        """Sends the user a note that is not a failure."""
        self.link.send("note", rank=self.number, iteration=self.iteration, note=text)

    def poll_command(self) -> int:
        """Returns the strongest command that the coordinator has sent since the last call."""
        with self._listening:
            self._listen()
            command, self._command = self._command, CONTINUE
        return command

    def await_metrics(self) -> bool:
        """Waits until all metrics before a checkpoint are in their file, on rank 0.

        Returns: False if the coordinator is gone. It answers also a rank that has failed.
        """
        while not self._logged.acquire(blocking=False):
            if self.link.closed:
                return False
            self.link.wait(METRICS_WAIT_S)  # without the lock: the loop may take the message first
            with self._listening:
                self._listen()
        return True

    def _listen(self) -> None:
        while (message := self.link.poll()) is not None:
            if message["kind"] == "logged":
                self._logged.release()
            else:
                command = {"stop": STOP, "checkpoint": CHECKPOINT}[message["kind"]]
                self._command = max(self._command, command)

    def _waiting(self) -> None:
        """Ends a wait if the coordinator has closed the link."""
        if self.link.closed:
            raise InterruptedError("the coordinator is gone")


def _agents(fragment: FragmentPlan, replica: int) -> Agents | None:
    if not fragment.agents:
        return None
    return Agents(range(*fragment.agents[replica]), fragment.agents[-1][1])
