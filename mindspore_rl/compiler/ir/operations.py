"""The table of operation kinds: one row each, with what the passes need to know.

A function of arrays, as `joint` is, needs a row and a function of its name in `rl/operators.py`.
Other kinds have a method `_KIND` where they are evaluated (`analysis/interpret.py`), where the
plain loop runs (`runtime/reference.py`) and in each writer that can meet them (`lowering/`).
"""

from dataclasses import dataclass

PARAMETERS = "$parameters"
ENVIRONMENT = "$environment"
REPLAY = "$replay"
EFFECTS = (PARAMETERS, ENVIRONMENT, REPLAY)
LOOPS = {"iterations": "iteration", "steps": "step", "epochs": "epoch", "minibatches": "minibatch"}
"""Loops of `msrl` and what their index is called."""
ENV_STEP_OUTPUTS = ("next_obs", "final_obs", "reward", "terminated", "truncated")


@dataclass(frozen=True)
class Kind:
    """What is known of a kind.

    Attributes:
        component: what it belongs to, or `glue`.
        call: whether it is a call of `msrl`.
        arguments: of the call, where their number is fixed.
        noise: whose random numbers it takes as its last argument: `env` or `agents`.
        reads: effects that the call uses.
        writes: effects that it changes.
        always: whether the call may not stand under a condition that is known only at run time.
        cell: what it is to a compiled cell. `computes`: reason enough for one. `fits`: compiles
            with others. `trims`: likewise, but is left outside at the ends. `rows`: where the
            loop that makes them compiles as a whole. `replay`: likewise, and all of the replay in
            one cell. `kept`: all of it in the cell of the environment, if that is in the graph.
            `environment`: reason enough, if that is in the graph. Else never.
        traced: whether it runs the user's code, whose compiled graph is read.
        tried: whether its rows are tried, too.
        whole: whether it takes all environments together.
        arrays: whether its arguments are arrays and no tuples.
        agents: the axis of agents of each result; `()`: none has one; None: as its inputs have.
        reduces: whether it makes one of many samples.
        splits: whether it gives as many results as there are names for them.
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
        "replay", call=True, reads=(REPLAY,), writes=(REPLAY,), always=True, cell="replay"
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
    ),
    # What the two become where records are kept.
    "replay_keep": Kind("replay", reads=(REPLAY,), writes=(REPLAY,), cell="kept"),
    "replay_draw": Kind("replay", reads=(REPLAY,), cell="kept", whole=True),
    "replay_update": Kind(
        "replay", call=True, arguments=2, reads=(REPLAY,), writes=(REPLAY,), arrays=True
    ),
    # Its third result is the loss by itself, for the passes: what its first two are means of.
    "gradient": Kind(
        "gradient",
        call=True,
        reads=(PARAMETERS,),
        cell="computes",
        traced=True,
        tried=True,
        whole=True,
        agents=None,
    ),
    "update": Kind(
        "update",
        call=True,
        reads=(PARAMETERS,),
        writes=(PARAMETERS,),
        cell="computes",
        traced=True,
        whole=True,
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
    # What expressions, loops and tables become.
    "glue": Kind(cell="computes", traced=True, tried=True, agents=None, splits=True),
    "copy": Kind(cell="trims", agents=None),  # a plain name
    "constant": Kind(cell="trims"),  # a number
    "index": Kind(cell="trims"),  # a row of a table
    "noise": Kind(cell="fits"),
    "permutations": Kind(cell="fits", whole=True),
    "minibatch": Kind(cell="computes", whole=True, arrays=True, agents=None),
    # What cutting adds.
    "send": Kind(),
    "receive": Kind(),
    "record": Kind(),
    "unset": Kind(),  # what a condition may leave out
    "progress": Kind(),  # `env_steps` by arrival
    "stack": Kind(cell="rows"),
    "unstack": Kind(cell="rows"),
    "replay_extend": Kind(cell="replay"),  # many rows at once
    "replay_keep_rows": Kind(),
    "all_reduce": Kind(cell="computes"),
    "flatten": Kind(cell="computes"),  # arrays in one
}
