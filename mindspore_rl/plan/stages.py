"""What a rank can be doing, as the numbers that its stamps carry."""

from enum import IntEnum

from mindspore_rl.plan.plan import Plan


class Stage(IntEnum):
    """The stages of every rank; those of a job's cells and edges follow, see `Stages`."""

    STARTING = 0
    PYTHON = 1
    ENVIRONMENT = 2
    BOUNDARY = 3
    CHECKPOINT = 4
    FINISHED = 5


_WORDS = {
    Stage.STARTING: "starting",
    Stage.PYTHON: "Python",
    Stage.ENVIRONMENT: "the environment",
    Stage.BOUNDARY: "the iteration boundary",
    Stage.CHECKPOINT: "a checkpoint",
    Stage.FINISHED: "finished",
}


class Stages:
    """All stages of a job, by number.

    Attributes:
        words: for users.
        waits: stages that end only when other ranks do something.
    """

    def __init__(self, plan: Plan) -> None:
        self.words = [_WORDS[stage] for stage in Stage]
        self.waits: set[int] = {Stage.BOUNDARY}
        self._cells: dict[tuple[str, str], int] = {}
        self._edges: dict[str, int] = {}
        for fragment in plan.fragments:
            for cell in fragment.cells:
                self._cells[fragment.name, cell] = len(self.words)
                if cell in fragment.collectives:
                    self.waits.add(len(self.words))
                self.words.append(f"cell {cell} of {fragment.name}")
        for message in plan.messages:
            self._edges[message.name] = len(self.words)
            self.waits.add(len(self.words))
            self.words.append(f"edge {message.name}")

    def cell(self, fragment: str, name: str) -> int:
        """The stage of a fragment's cell."""
        return self._cells[fragment, name]

    def edge(self, message: str) -> int:
        """The stage of waiting for a message."""
        return self._edges[message]
