"""The table of operation kinds: one row each, with what the passes need to know.

A function of arrays, such as `joint`, needs a row and a function of its name in `rl/operators.py`.
Other kinds have a method `_KIND` in the interpreter (`analysis/interpret.py`), in the reference
loop (`runtime/reference.py`) and in each code emitter that handles them (`lowering/`).
"""

from dataclasses import dataclass

PARAMETERS = "$parameters"
ENVIRONMENT = "$environment"
REPLAY = "$replay"
EFFECTS = (PARAMETERS, ENVIRONMENT, REPLAY)
LOOPS = {"iterations": "iteration", "steps": "step", "epochs": "epoch", "minibatches": "minibatch"}
"""Loops of `msrl`, each with the default name of its index."""
ENV_STEP_OUTPUTS = ("next_obs", "final_obs", "reward", "terminated", "truncated")


@dataclass(frozen=True)
class Kind:
    """The properties of a kind of operation.

    Attributes:
        component: the component it belongs to, or `glue`.
        call: whether it is a call of `msrl`.
        arguments: number of arguments of the call; None if it varies.
        noise: whose random numbers it takes as its last argument: `env` or `agents`.
        reads: effects that the call uses.
        writes: effects that it changes.
        always: whether the call may not stand under a condition that is known only at run time.
        cell: its place in compiled cells. `computes`: reason enough to make a cell. `fits`:
            compiles with others. `trims`: likewise, but is left outside at the ends of a cell.
            `rows`: compiles where the loop that makes the rows compiles as a whole. `replay`:
            likewise, with all of the replay in one cell. `kept`: compiles in the cell of an
            in-graph environment, with all of the replay. `environment`: reason enough to make a
            cell if the environment is in the graph. Empty: never compiles.
        traced: whether it runs the user's code, whose compiled graph is read.
        tried: whether its row dependence is also tested by running it.
        whole: whether it takes all environments together.
        arrays: whether its arguments must be arrays, not tuples.
        agents: the axis of agents of each result; `()`: none has one; None: as its inputs have.
        reduces: whether it reduces many samples to one value.
        splits: whether it returns one result for each target name.
        takes: the mark of its arguments where the program sets none; of an update, of those that
            are statistics of the batch.
        gives: the mark of its results where the program sets none.
    """

    component: str = "glue"
    call: bool = False
    arguments: int | None = None
    noise: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    always: bool = False
    cell: str = ""
    traced: bool = False
    tried: bool = False
    whole: bool = False
    arrays: bool = False
    agents: tuple[int | None, ...] | None = ()
    reduces: bool = False
    splits: bool = False
    takes: str = ""
    gives: str = ""


_REDUCTION = Kind(call=True, cell="computes", whole=True, arrays=True, agents=None, reduces=True)
OPERATIONS = {
    # Calls of msrl.
    "env_reset": Kind(
        "environment",
        call=True,
        arguments=0,
        noise="env",
        writes=(ENVIRONMENT,),
        always=True,
        cell="environment",
        agents=(1,),
        gives="observation",
    ),
    "env_step": Kind(
        "environment",
        call=True,
        arguments=1,
        noise="env",
        reads=(ENVIRONMENT,),
        writes=(ENVIRONMENT,),
        always=True,
        cell="environment",
        arrays=True,
        agents=(1, 1, 1, None, None),
        takes="action",
        gives="observation",
    ),
    "agent_act": Kind(
        "actor",
        call=True,
        noise="agents",
        reads=(PARAMETERS,),
        always=True,
        cell="computes",
        traced=True,
        tried=True,
        agents=None,
        splits=True,
    ),
    "replay_insert": Kind(
        "replay",
        call=True,
        reads=(REPLAY,),
        writes=(REPLAY,),
        always=True,
        cell="replay",
        takes="transition",
    ),
    "replay_sample": Kind(
        "replay",
        call=True,
        arguments=0,
        reads=(REPLAY,),
        writes=(REPLAY,),
        always=True,
        cell="replay",
        whole=True,
        gives="batch",
    ),
    # Insertions with `keep` and samples with a count become these two.
    "replay_keep": Kind(
        "replay", reads=(REPLAY,), writes=(REPLAY,), cell="kept", takes="transition"
    ),
    "replay_draw": Kind("replay", reads=(REPLAY,), cell="kept", whole=True, gives="batch"),
    "replay_update": Kind(
        "replay",
        call=True,
        arguments=2,
        reads=(REPLAY,),
        writes=(REPLAY,),
        arrays=True,
        takes="priority",
    ),
    # The third result is the loss of each sample, which only passes use; the first two are means.
    "gradient": Kind(
        "gradient",
        call=True,
        reads=(PARAMETERS,),
        cell="computes",
        traced=True,
        tried=True,
        whole=True,
        agents=None,
        gives="gradient",
    ),
    "update": Kind(
        "update",
        call=True,
        reads=(PARAMETERS,),
        writes=(PARAMETERS,),
        cell="computes",
        traced=True,
        whole=True,
        takes="gradient",
    ),
    "mean": _REDUCTION,
    "sum": _REDUCTION,
    "max": _REDUCTION,
    "min": _REDUCTION,
    "joint": Kind(call=True, arguments=1, cell="trims", arrays=True),
    "boundary": Kind(call=True, agents=None),
    "uniform": Kind(call=True, arguments=2, cell="computes"),
    "dataset_windows": Kind(call=True, arguments=3, agents=(3, 3, 3, None, None, None)),
    "env_steps": Kind(call=True, cell="fits"),
    "report": Kind(call=True),
    "agent_learn": Kind(call=True),  # its operations stand in its place
    # Expressions, loops and tables.
    "glue": Kind(cell="computes", traced=True, tried=True, agents=None, splits=True),
    "copy": Kind(cell="trims", agents=None),  # a plain name
    "constant": Kind(cell="trims"),  # a number
    "index": Kind(cell="trims"),  # a row of a table
    "noise": Kind(cell="fits"),
    "permutations": Kind(cell="fits", whole=True),
    "minibatch": Kind(cell="computes", whole=True, arrays=True, agents=None),
    # Added by partitioning and lowering.
    "send": Kind(),
    "receive": Kind(),
    "record": Kind(),
    "unset": Kind(),  # a variable that a condition may leave undefined
    "progress": Kind(),  # `env_steps` of an asynchronous schedule
    "stack": Kind(cell="rows"),
    "unstack": Kind(cell="rows"),
    "replay_extend": Kind(cell="replay"),  # many rows at once
    "replay_keep_rows": Kind(),
    "all_reduce": Kind(cell="computes"),
    "flatten": Kind(cell="computes"),  # concatenates arrays into one
}
