"""One process of a job: its place in the plan, and its lines to the others."""

from pathlib import Path

from mindspore_rl.communication.communicator import Communicator
from mindspore_rl.communication.link import Link
from mindspore_rl.plan.plan import FragmentPlan, Plan
from mindspore_rl.plan.stages import Stage, Stages
from mindspore_rl.rl.random import Agents
from mindspore_rl.runtime.heartbeat import Stamps
from mindspore_rl.runtime.profile_recorder import Profile
from mindspore_rl.runtime.rank.messenger import CHECKPOINT, CONTINUE, STOP, Messenger


class Rank:
    """What everything on a rank knows of it.

    Args:
        number: in MPI's order.
        comm: None in a job of one rank.

    Attributes:
        fragment: that it runs.
        replica: which of the fragment's.
        env_indices: its share of the environments.
        agents: its share of them; None in an environment of a single one.
        iteration: under way, its own if workers are served as they come.
        env_steps: of the whole job, as far as this rank knows.
        profile: what it writes down of some iterations, if it does.
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
    ) -> None:
        self.plan, self.run_dir, self.number, self.link = plan, run_dir, number, link
        self.fragment, self.replica = plan.fragment_of(number)
        self.env_indices = range(*self.fragment.shares[self.replica])
        self.agents = _agents(self.fragment, self.replica)
        self.iteration = 0
        self.env_steps = 0
        self.stages, self.profile = Stages(plan), profile
        self.messenger = Messenger(comm, self.stamp, self._waiting)
        self._stamps, self._stage = stamps, int(Stage.STARTING)

    def stamp(self, stage: int) -> None:
        """Tells the watchdog what this rank does from now on."""
        self._stage = stage
        self._stamps.write(self.number, self.iteration, stage)
        if self.profile is not None:
            self.profile.stage(stage)

    @property
    def stage(self) -> str:
        """What this rank is doing, in words."""
        return self.stages.words[self._stage]

    @property
    def served(self) -> bool:
        """Whether another fragment serves it as its messages come: its iterations are its own."""
        arrivals = self.plan.arrivals
        return arrivals is not None and arrivals.sender == self.fragment.name

    @property
    def stepping(self) -> bool:
        """Whether it steps environments."""
        return "environment" in self.fragment.components

    def note(self, text: str) -> None:
        """Tells the user something that is no failure."""
        self.link.send("note", rank=self.number, iteration=self.iteration, note=text)

    def poll_command(self) -> int:
        """What the coordinator asks for."""
        command = CONTINUE
        while (message := self.link.poll()) is not None:
            command = max(command, {"stop": STOP, "checkpoint": CHECKPOINT}[message["kind"]])
        return command

    def _waiting(self) -> None:
        """Ends a wait when the coordinator is gone."""
        if self.link.closed:
            raise InterruptedError("the coordinator is gone")


def _agents(fragment: FragmentPlan, replica: int) -> Agents | None:
    if not fragment.agents:
        return None
    return Agents(range(*fragment.agents[replica]), fragment.agents[-1][1])
