"""The table of operation kinds: one row each, with what the passes need to know.

A function of arrays, such as `joint`, needs a row and a function of its name in `rl/operators.py`.
Other kinds have a function in each pass that meets them, see `Handlers`: the interpreter
(`analysis/interpret.py`) and the code emitters (`lowering/`). Calls of `msrl` also have a method of
their name in the reference loop (`runtime/reference.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any, TypedDict, TypeVar, get_type_hints

PARAMETERS = "$parameters"
ENVIRONMENT = "$environment"
REPLAY = "$replay"
EFFECTS = (PARAMETERS, ENVIRONMENT, REPLAY)
LOOPS = {"iterations": "iteration", "steps": "step", "epochs": "epoch", "minibatches": "minibatch"}
"""Loops of `msrl`, each with the default name of its index."""
ENV_STEP_OUTPUTS = ("next_obs", "final_obs", "reward", "terminated", "truncated")
PLACED = ("iteration", "per_iteration", "index", "rows", "weighted", "compiles", "turn")
"""Attributes that `replay_rows.place_kept` sets."""


class Attributes(TypedDict, total=False):
    """The attributes of operations, each with its type; a kind's row names those that it has."""

    axis: int | None
    by: str
    capacity: int
    compiles: bool
    count: int
    forms: tuple[Any, ...]
    index: str
    iteration: str
    keep: Any  # the interpreter checks it, with the array
    key: str
    keys: tuple[str, ...]
    lag: int
    length: int
    message: str
    named: bool
    objects: tuple[str, ...]
    owner: str
    path: str
    per_env: int
    per_iteration: int
    purpose: str
    reduction: str
    rounds: int
    rows: int
    site: str
    size: int
    steps: int
    store: str
    turn: str
    weighted: bool


@dataclass(frozen=True)
class Kind:
    """The properties of a kind of operation.

    Attributes:
        component: the component it belongs to, or `glue`.
        call: whether it is a call of `msrl`.
        arguments: number of arguments of the call; None if it varies.
        noise: whose random numbers it takes as its last argument: `env` or `agents`.
        draws: whether the call draws random numbers, of its own in each place of the program.
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
        attrs: the attributes that it always has.
        more: attributes that it may have, or that a later pass sets.
        probed: whether the interpreter meets it.
        loop: whether it is written into a fragment's loop, outside cells.
        part: name of the attribute of a cell that carries it out; empty: none does.
        function: whether it is the function of its name in `rl/operators.py`.
    """

    component: str = "glue"
    call: bool = False
    arguments: int | None = None
    noise: str = ""
    draws: bool = False
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
    attrs: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    probed: bool = True
    loop: bool = True
    part: str = ""
    function: bool = False

    @property
    def family(self) -> str:
        """The name under which a pass handles it together with other kinds; empty: it does not."""
        return "reduction" if self.reduces else "function" if self.function else ""


_COMPUTES = partial(Kind, cell="computes", loop=False)
_REDUCTION = _COMPUTES(
    call=True, whole=True, arrays=True, agents=None, reduces=True, attrs=("keep",)
)
_ADDED = partial(Kind, probed=False)
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
    "agent_act": _COMPUTES(
        "actor",
        call=True,
        noise="agents",
        reads=(PARAMETERS,),
        always=True,
        traced=True,
        tried=True,
        agents=None,
        splits=True,
        # The forms of its arguments, as of a gradient's; names of the last arguments; older
        # parameters of a second actor; an argument or the result has names.
        more=("forms", "keys", "lag", "named"),
        part="act",  # if one of them has names
    ),
    "replay_insert": Kind(
        "replay",
        call=True,
        reads=(REPLAY,),
        writes=(REPLAY,),
        always=True,
        cell="replay",
        takes="transition",
        more=("index", "rows"),
    ),
    "replay_sample": Kind(
        "replay",
        call=True,
        arguments=0,
        draws=True,
        reads=(REPLAY,),
        writes=(REPLAY,),
        always=True,
        cell="replay",
        whole=True,
        gives="batch",
        more=("rows",),
    ),
    # Insertions with `keep` and samples with a count become these two.
    "replay_keep": Kind(
        "replay",
        reads=(REPLAY,),
        writes=(REPLAY,),
        cell="kept",
        takes="transition",
        attrs=("capacity",),
        more=("store", *PLACED),  # the name of one of several replays
    ),
    "replay_draw": Kind(
        "replay",
        reads=(REPLAY,),
        cell="kept",
        whole=True,
        gives="batch",
        attrs=("per_env", "capacity", "by", "steps"),
        more=("purpose", "store", "count", *PLACED),
        part="draws",
    ),
    "replay_update": Kind(
        "replay",
        call=True,
        arguments=2,
        reads=(REPLAY,),
        writes=(REPLAY,),
        arrays=True,
        takes="priority",
        more=("store",),
    ),
    # The first two results are means; the third is what the loss returned for each sample.
    "gradient": _COMPUTES(
        "gradient",
        call=True,
        reads=(PARAMETERS,),
        traced=True,
        tried=True,
        whole=True,
        agents=None,
        gives="gradient",
        attrs=("objects",),
        more=("forms",),  # of records among the arguments, which are written as tuples
        part="gradient",
    ),
    "update": _COMPUTES(
        "update",
        call=True,
        reads=(PARAMETERS,),
        writes=(PARAMETERS,),
        traced=True,
        whole=True,
        takes="gradient",
        attrs=("objects",),
        part="update",  # if its method is made of a function inside another
    ),
    "mean": _REDUCTION,
    "sum": _REDUCTION,
    "max": _REDUCTION,
    "min": _REDUCTION,
    "joint": Kind(call=True, arguments=1, cell="trims", arrays=True, function=True),
    "boundary": Kind(call=True, agents=None, attrs=("site",), loop=False),  # becomes a copy
    "uniform": _COMPUTES(call=True, arguments=2, draws=True, function=True),
    "dataset_windows": Kind(
        call=True,
        arguments=3,
        draws=True,
        agents=(3, 3, 3, None, None, None),
        attrs=("purpose", "path", "per_env", "length", "rows"),
    ),
    "dataset_transitions": Kind(
        call=True,
        arguments=2,
        draws=True,
        agents=(2, 2, 2, None, 2),
        attrs=("purpose", "path", "per_env", "length", "rows"),
    ),
    "env_steps": Kind(call=True, cell="fits"),
    "env_index": Kind(call=True, arguments=0, cell="fits", part="env_index"),
    "agent_index": Kind(call=True, arguments=0, cell="fits", agents=(0,), part="agent_index"),
    "report": Kind(call=True, attrs=("keys",)),
    # Its operations stand in its place.
    "agent_learn": Kind(call=True, probed=False, loop=False),
    # Expressions, loops and tables.
    "glue": Kind(cell="computes", traced=True, tried=True, agents=None, splits=True),
    "copy": Kind(cell="trims", agents=None, more=("site",)),  # a plain name, or a boundary's value
    "constant": Kind(cell="trims"),  # a number
    "index": Kind(cell="trims"),  # a row of a table
    "noise": Kind(cell="fits", attrs=("purpose", "owner", "rows"), more=("size",), part="noise"),
    # `uniform` for a batch that is no multiple of the environments: the same on every rank.
    "uniform_of_all": Kind(attrs=("purpose", "count", "size", "rows")),
    "permutations": Kind(cell="fits", whole=True, attrs=("rounds", "steps"), part="permutations"),
    "minibatch": _COMPUTES(whole=True, arrays=True, agents=None, attrs=("count", "steps")),
    # Added by partitioning and lowering.
    "send": _ADDED(attrs=("message",)),
    "receive": _ADDED(attrs=("message",)),
    "record": _ADDED(attrs=("key", "axis")),
    "unset": _ADDED(),  # a variable that a condition may leave undefined
    "progress": _ADDED(),  # `env_steps` of an asynchronous schedule
    "stack": _ADDED(cell="rows", attrs=("rows",)),
    "unstack": _ADDED(cell="rows"),
    "replay_extend": _ADDED(cell="replay", attrs=("index", "rows")),  # many rows at once
    "replay_keep_rows": _ADDED(attrs=("capacity", *PLACED), more=("store",)),
    "all_reduce": _COMPUTES(probed=False, attrs=("reduction",), part="reduce"),
    "flatten": _COMPUTES(probed=False, function=True),  # concatenates arrays into one
}
_CHECKED: dict[Any, Any] = {
    int: Integral,
    tuple[str, ...]: tuple,
    tuple[Any, ...]: tuple,
    Any: object,
}
_TYPES = {key: _CHECKED.get(kind, kind) for key, kind in get_type_hints(Attributes).items()}
F = TypeVar("F", bound=Callable[..., Any])


def check_attributes(name: str, kind: str, given: dict[str, Any]) -> None:
    """Checks that an operation has the attributes of its kind, with their types."""
    row = OPERATIONS[kind]
    absent = [key for key in row.attrs if key not in given]
    assert not absent, f"{name}: {kind} without its attribute {absent[0]!r}"
    for key, value in given.items():
        assert key in row.attrs + row.more, f"{name}: {kind} has no attribute {key!r}"
        assert isinstance(value, _TYPES[key]), f"{name}: {key} of {kind} is {value!r}"


class Handlers(dict[str, Callable[..., Any]]):
    """Functions of a pass, one for each kind of operation that it meets or family of kinds.

    A kind's own function goes before its family's.

    Args:
        does: what the functions do with an operation, for messages.
        meets: whether the pass meets operations of a kind.
    """

    def __init__(self, does: str, meets: Callable[[Kind], object]) -> None:
        super().__init__()
        self.does, self.meets = does, meets

    def __call__(self, *kinds: str) -> Callable[[F], F]:
        """Decorates the function that handles some kinds."""

        def registered(function: F) -> F:
            for kind in kinds:
                assert kind not in self, f"a second function {self.does} {kind}"
                self[kind] = function
            return function

        return registered

    def __missing__(self, kind: str) -> Callable[..., Any]:
        family = OPERATIONS[kind].family
        assert family in self, f"no function {self.does} {kind}"
        return self[family]

    def check(self) -> None:
        """Checks that each kind that the pass meets has a function, and no other kind."""
        met = {kind: row for kind, row in OPERATIONS.items() if self.meets(row)}
        absent = [kind for kind, row in met.items() if not {kind, row.family} & self.keys()]
        assert not absent, f"no function {self.does} {', '.join(absent)}"
        odd = self.keys() - met.keys() - {row.family for row in met.values()}
        assert not odd, f"a function {self.does} {', '.join(odd)}, which the pass never meets"
