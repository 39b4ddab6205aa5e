"""Stages that a rank can be in, as numbers of its heartbeat."""

from enum import IntEnum

from mindspore_rl.plan.edges import plan_edges
from mindspore_rl.plan.plan import Plan


class Stage(IntEnum):
    """Stages that every rank has; the stages of a job's cells and edges follow, see `Stages`."""

    STARTING = 0
    PYTHON = 1
    ENVIRONMENT = 2
    BOUNDARY = 3
    CHECKPOINT = 4
    FINISHED = 5
    DATASET = 6
    RECORDS = 7
    BATCHES = 8


_WORDS = {
    Stage.STARTING: "starting",
    Stage.PYTHON: "Python",
    Stage.ENVIRONMENT: "the environment",
    Stage.BOUNDARY: "the iteration boundary",
    Stage.CHECKPOINT: "a checkpoint",
    Stage.FINISHED: "finished",
    Stage.DATASET: "a data set",
    Stage.RECORDS: "records of other replicas",
    Stage.BATCHES: "batches of other replicas",
}


class Stages:
    """All stages of a job, by number: those of `Stage`, of its cells and of its edges.

    Attributes:
        words: name of each stage, for users.
    """

    def __init__(self, plan: Plan) -> None:
        self.words = [_WORDS[stage] for stage in Stage]
        self._plan = plan
        self._cells: dict[tuple[str, str], int] = {}
        self._edges: dict[str, int] = {}
        for fragment in plan.fragments:
            for cell in fragment.cells:
                self._cells[fragment.name, cell] = len(self.words)
                self.words.append(f"cell {cell} of {fragment.name}")
        for message in plan.messages:
            self._edges[message.name] = len(self.words)
            self.words.append(f"edge {message.name}")

    def cell(self, fragment: str, name: str) -> int:
        """Returns the stage of a fragment's cell."""
        return self._cells[fragment, name]

    def edge(self, message: str) -> int:
        """Returns the stage of waiting for a message."""
        return self._edges[message]

    def awaited(self, rank: int, stage: int, iteration: int) -> set[int]:
        """Returns the ranks that a rank at a stage waits for; empty if it works by itself."""
        plan = self._plan
        fragment, replica = plan.fragment_of(rank)
        found: set[int] = set()
        if stage == Stage.BOUNDARY:
            found = {plan.leader}
            if iteration <= 0:  # and for the initial parameters
                found |= {f.first_rank for f in plan.fragments if "update" in f.components}
        elif stage == Stage.CHECKPOINT and rank == 0:  # rank 0 gathers and writes it
            found = set(range(plan.num_ranks))
        elif stage in (Stage.RECORDS, Stage.BATCHES):
            found = set(fragment.ranks)
        for cell in fragment.collectives:
            if stage == self._cells[fragment.name, cell]:
                found = set(fragment.ranks)
        for name, edge in plan_edges(plan).items():
            if stage == self._edges[name] and edge.target is fragment:
                first = edge.source.first_rank
                found = {first + source for source, target in edge.pairs if target == replica}
        return found - {rank}
