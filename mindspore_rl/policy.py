"""The type of a distribution policy: where to cut the graph, how often to replicate each piece.

A policy is a frozen value without control flow; its values live in `distribution/`.
"""

from dataclasses import InitVar, dataclass, field, fields
from typing import get_args

from mindspore_rl.errors import PolicyError
from mindspore_rl.platform.names import check_name

COMPONENTS = ("environment", "actor", "replay", "gradient", "update")
"""Components of an algorithm, which fragments hold."""
WORKERS = "workers"
"""The number of replicas that `--workers` gives."""


@dataclass(frozen=True)
class FragmentRule:
    """One kind of fragment.

    Attributes:
        name: its name in plans, errors and generated files.
        components: components from `COMPONENTS`; all other operations follow the data.
        replicas: a number, or `WORKERS`.
        sharded: the axis that is sharded over replicas, `env` (environments) or `agent` (agents),
            or a tuple of these: the first of which the environment has several. None for a single
            replica.
        compiled: components that must have a graph implementation, so that they compile with
            the rest.
        split: former name of `sharded`.
    """

    name: str
    components: tuple[str, ...]
    replicas: int | str = 1
    sharded: str | tuple[str, ...] | None = None
    compiled: tuple[str, ...] = ()
    split: InitVar[str | tuple[str, ...] | None] = None

    def __post_init__(self, split: str | tuple[str, ...] | None) -> None:
        if split is not None:
            object.__setattr__(self, "sharded", split)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that may be sharded over replicas, in order of preference."""
        return (self.sharded,) if isinstance(self.sharded, str) else self.sharded or ()


@dataclass(frozen=True)
class Cut:
    """A boundary mark that may be cut, and the components between which it is expected.

    Attributes:
        mark: the mark's name.
        source: the component that sends.
        target: the component that receives.
        optional: whether algorithms without this mark are accepted too.
    """

    mark: str
    source: str
    target: str
    optional: bool = False


SYNCHRONOUS, ASYNCHRONOUS = "synchronous", "asynchronous"
FORMER_ORDERS = {"arrival": ASYNCHRONOUS}
"""Former names of orders, in older files."""


@dataclass(frozen=True)
class Schedule:
    """The order in which fragments fire; also `--schedule` and `schedule:` in a YAML file.

    Attributes:
        order: `synchronous`: all replicas of a fragment take part in every message. `asynchronous`:
            the receiving fragment fires once for each sender's message, in order of arrival, or for
            those of the first `gather` senders.
        staleness: asynchronous: the maximum number of updates between the parameters that a
            gradient is computed with and those that it is applied to; None: twice the workers.
        drop_stale: asynchronous: whether a staler gradient is dropped; else its worker waits
            before it computes one.
        chunks: parts of the environments that a fragment works on in turn.
        act_for: synchronous: the number of replicas of the environments' fragment for which a
            learner acts at a time, whenever all of them are ready; 0: for all, in every step.
        gather: asynchronous: the number of senders whose rows of environments make one batch of
            each replica of the receiving fragment, the first that are there.
        lag: synchronous: the number of iterations that the actors' parameters are older than
            in the plain loop: the learner learns meanwhile. The actors of iteration i act with the
            parameters after iteration i - 1 - lag, or the initial ones.
    """

    order: str = field(default=SYNCHRONOUS, metadata={"help": "synchronous or asynchronous"})
    staleness: int | None = field(
        default=None, metadata={"help": "asynchronous: bound in updates (none: twice the workers)"}
    )
    drop_stale: bool = field(
        default=False, metadata={"help": "asynchronous: drop staler gradients, never wait"}
    )
    chunks: int = field(default=1, metadata={"help": "parts of the environments, in turn"})
    act_for: int = field(
        default=0, metadata={"help": "synchronous: workers to act for once ready (0: all)"}
    )
    gather: int = field(
        default=1, metadata={"help": "asynchronous: senders whose rows make one batch"}
    )
    lag: int = field(
        default=0, metadata={"help": "synchronous: iterations that actors run ahead of the learner"}
    )

    def __post_init__(self) -> None:
        if isinstance(self.order, str):
            object.__setattr__(self, "order", FORMER_ORDERS.get(self.order, self.order))
        if self.order not in (SYNCHRONOUS, ASYNCHRONOUS):
            raise PolicyError(
                f"schedule: order is {self.order!r}, expected {SYNCHRONOUS!r} or {ASYNCHRONOUS!r}"
            )
        for key in fields(self)[1:]:
            kinds, value = get_args(key.type) or (key.type,), getattr(self, key.name)
            if type(value) not in kinds:  # True is an int, and "false" is true
                expected = getattr(key.type, "__name__", key.type)
                raise PolicyError(f"schedule: {key.name} is {value!r}, expected {expected}")
        if self.staleness is not None and self.staleness < 0:
            raise PolicyError(
                f"schedule: staleness is {self.staleness}, expected at least 0 updates, or none "
                "for twice the workers"
            )
        if self.chunks < 1:
            raise PolicyError(f"schedule: chunks is {self.chunks}, expected at least 1")
        if self.act_for < 0:
            raise PolicyError(
                f"schedule: act_for is {self.act_for}, expected at least 1 worker, or 0 for all"
            )
        if self.act_for and (self.chunks > 1 or self.order == ASYNCHRONOUS):
            other = f"chunks={self.chunks}" if self.chunks > 1 else f"order={ASYNCHRONOUS}"
            raise PolicyError(
                f"schedule: act_for={self.act_for} and {other} both say whom a learner waits for; "
                "leave one of them out"
            )
        if self.gather < 1:
            raise PolicyError(f"schedule: gather is {self.gather}, expected at least 1 sender")
        if self.lag < 0:
            raise PolicyError(f"schedule: lag is {self.lag}, expected at least 0 iterations")
        if self.order == ASYNCHRONOUS and self.lag:
            raise PolicyError(
                f"schedule: lag belongs to order={SYNCHRONOUS}, and order is {ASYNCHRONOUS}, whose "
                "bound is staleness; leave one of them out"
            )
        asynchronous = self.staleness is not None or self.drop_stale or self.gather > 1
        if self.order == SYNCHRONOUS and asynchronous:
            raise PolicyError(
                f"schedule: staleness, drop_stale and gather belong to order={ASYNCHRONOUS}, and "
                f"order is {SYNCHRONOUS}; leave them out or ask for order={ASYNCHRONOUS}"
            )


def _check_tuple(here: str, key: str, value: object, kind: type, example: str) -> None:
    if not isinstance(value, tuple) or not all(isinstance(part, kind) for part in value):
        raise PolicyError(
            f"{here} has {key}={value!r}, expected a tuple, which has a comma for one part too: "
            f"({example},)"
        )


@dataclass(frozen=True)
class DistributionPolicy:
    """The distribution of an algorithm over fragments.

    Attributes:
        name: the policy's name for `--policy`.
        summary: a description in one line.
        fragments: fragments that together hold every component exactly once.
        cuts: the marks that may be cut.
        colocate: groups of fragments whose replicas share devices one to one; a fragment is in at
            most one group. With equal numbers of replicas a group's fragments are fused into one.
        schedule: the order in which fragments fire; a run may override it.
    """

    name: str
    summary: str
    fragments: tuple[FragmentRule, ...]
    cuts: tuple[Cut, ...] = ()
    colocate: tuple[tuple[str, ...], ...] = ()
    schedule: Schedule = Schedule()

    def __post_init__(self) -> None:
        check_name("policy", self.name, PolicyError)
        self._check_types()
        held = [part for rule in self.fragments for part in rule.components]
        if sorted(held) != sorted(COMPONENTS):
            raise PolicyError(
                f"policy {self.name}: its fragments hold {', '.join(held)}; expected each of "
                f"{', '.join(COMPONENTS)} exactly once"
            )
        names = [rule.name for rule in self.fragments]
        if len(set(names)) != len(names):
            raise PolicyError(
                f"policy {self.name}: fragments are {', '.join(names)}; each needs its own name"
            )
        if empty := [rule.name for rule in self.fragments if not rule.components]:
            raise PolicyError(
                f"policy {self.name}: fragment {empty[0]} holds no component, expected some of "
                f"{', '.join(COMPONENTS)}: its replicas would have nothing to do"
            )
        self._check_groups(names)
        for rule in self.fragments:
            self._check(rule)
        for cut in self.cuts:
            self._check_cut(cut)

    def _check_types(self) -> None:
        here = f"policy {self.name}"
        _check_tuple(here, "fragments", self.fragments, FragmentRule, 'FragmentRule("actor", ...)')
        _check_tuple(here, "cuts", self.cuts, Cut, 'Cut("transition", "actor", "replay")')
        _check_tuple(here, "colocate", self.colocate, tuple, '("actor", "learner")')
        if not isinstance(self.schedule, Schedule):
            raise PolicyError(f"{here} has schedule={self.schedule!r}, expected Schedule(...)")
        for rule in self.fragments:
            check_name(f"a fragment of {here}", rule.name, PolicyError)
            fragment = f"{here}: fragment {rule.name}"
            _check_tuple(fragment, "components", rule.components, str, '"environment"')
            _check_tuple(fragment, "compiled", rule.compiled, str, '"environment"')
            if not isinstance(rule.sharded, str | None):
                _check_tuple(fragment, "sharded", rule.sharded, str, '"env"')

    def _check_groups(self, names: list[str]) -> None:
        """Checks the groups of `colocate`: sets of at least two fragments that do not overlap."""
        together: list[str] = []
        for group in self.colocate:
            unknown = [str(name) for name in group if name not in names]
            if unknown:
                raise PolicyError(
                    f"policy {self.name}: colocate names {', '.join(unknown)}; fragments are "
                    f"{', '.join(names)}"
                )
            if len(group) < 2 or len(set(group)) < len(group):
                raise PolicyError(
                    f"policy {self.name}: colocate has the group {group!r}, expected at least two "
                    "fragments, each once"
                )
            if twice := [name for name in group if name in together]:
                groups = [other for other in self.colocate if twice[0] in other]
                joined = tuple(dict.fromkeys(name for other in groups for name in other))
                raise PolicyError(
                    f"policy {self.name}: colocate has {twice[0]} in several groups; what shares "
                    f"a device stands in one: {joined!r}"
                )
            together += group

    def _check_cut(self, cut: Cut) -> None:
        here = f"policy {self.name}: cut {cut.mark!r} lies between {cut.source!r} and "
        here += f"{cut.target!r}"
        check_name(f"a cut of policy {self.name}", cut.mark, PolicyError)
        if cut.source not in COMPONENTS or cut.target not in COMPONENTS:
            raise PolicyError(f"{here}; components are {', '.join(COMPONENTS)}")
        if not isinstance(cut.optional, bool):
            raise PolicyError(f"{here} with optional={cut.optional!r}, expected True or False")
        if cut.source == cut.target:
            raise PolicyError(f"{here}, expected two components: source and target")
        if cut.mark == "parameters" and cut.source != "update":
            raise PolicyError(
                f'{here}, and updates send parameters: write Cut("parameters", "update", '
                f'"{cut.source if cut.target == "update" else cut.target}")'
            )

    def _check(self, rule: FragmentRule) -> None:
        here = f"policy {self.name}: fragment {rule.name}"
        counted = type(rule.replicas) is int and rule.replicas >= 1
        if not counted and rule.replicas != WORKERS:
            raise PolicyError(
                f"{here} has replicas={rule.replicas!r}, expected a number of at least 1, or "
                f"WORKERS ({WORKERS!r}) for as many as --workers says"
            )
        if set(rule.compiled) - ({"environment"} & set(rule.components)):
            raise PolicyError(
                f"{here} has compiled={rule.compiled!r} and holds {', '.join(rule.components)}; "
                "expected () or, where it holds the environment, ('environment',): everything "
                "else compiles wherever it can"
            )
        if (rule.replicas != 1 and not rule.axes) or set(rule.axes) - {"env", "agent"}:
            raise PolicyError(
                f"{here} has several replicas and sharded={rule.sharded!r}, expected 'env', "
                "'agent' or ('agent', 'env')"
            )
        if "agent" in rule.axes and "environment" in rule.components:
            raise PolicyError(
                f"{here} holds the environment and has sharded={rule.sharded!r}, expected 'env': "
                "agents share their environment"
            )

    @property
    def marks(self) -> frozenset[str]:
        """The marks that may be cut."""
        return frozenset(cut.mark for cut in self.cuts)
