"""Partition: assigns operations to fragments and finds the values that cross.

The policy places components. Everything else (`glue`) is computed in every fragment that needs it,
back to a mark that the policy may cut; there the value becomes a message. This is endpoint
projection: each fragment's demand is followed backwards through reaching definitions.
"""

import re
from dataclasses import dataclass, replace

from mindspore_rl.compiler.ir.dataflow import INITIAL, definitions
from mindspore_rl.compiler.ir.ir import Branch, Op, Program, paths, walk
from mindspore_rl.compiler.ir.operations import EFFECTS, OPERATIONS, PARAMETERS
from mindspore_rl.compiler.partition.messages import Message, positioned
from mindspore_rl.compiler.partition.replicate import Fragment
from mindspore_rl.errors import PolicyError
from mindspore_rl.plan.plan import Arrivals
from mindspore_rl.policy import DistributionPolicy

USUAL = (
    ("observation", "environment", "actor"),
    ("action", "actor", "environment"),
    ("transition", "actor", "replay"),
    ("batch", "replay", "gradient"),
    ("gradient", "gradient", "update"),
)
"""Marks that calls imply, and the components between which policies cut them."""


@dataclass(frozen=True)
class Partition:
    """A program partitioned into fragments.

    Attributes:
        reduced: operations whose result is all-reduced over the replicas of a fragment that runs
            them: `{(fragment, op)}`.
        partial: operations whose result stays a partial sum, which the target of its message sums
            up: `{(fragment, op)}`.
        arrivals: the sender and the consumer of an asynchronous schedule; None: synchronous.
        parts: the environments of each part of loops that run apart, see `Loop.apart`.
    """

    program: Program
    policy: DistributionPolicy
    fragments: tuple[Fragment, ...]
    messages: tuple[Message, ...]
    reduced: frozenset[tuple[str, str]] = frozenset()
    partial: frozenset[tuple[str, str]] = frozenset()
    arrivals: Arrivals | None = None
    parts: tuple[range, ...] = ()

    def fragment(self, name: str) -> Fragment:
        """Returns the fragment of that name."""
        return next(f for f in self.fragments if f.name == name)


def partition(
    program: Program, policy: DistributionPolicy, placed: tuple[Fragment, ...]
) -> Partition:
    """Partitions a program by a policy.

    Args:
        program: the program, with the values of its variables inferred.
        policy: the marks where it may be cut.
        placed: the fragments, see `replicate`.

    Raises:
        PolicyError: a value would cross where no mark permits it, or a mark that the policy cuts
            is missing.
    """
    demand = _Demand(program, policy, placed)
    demand.run()
    result = Partition(
        program,
        policy,
        tuple(replace(f, ops=frozenset(demand.ops[f.name])) for f in placed),
        demand.messages(),
    )
    _check_marks(result)
    return result


class _Demand:
    """Follows the demand of each fragment back to the definitions of values."""

    def __init__(
        self, program: Program, policy: DistributionPolicy, fragments: tuple[Fragment, ...]
    ) -> None:
        self.program, self.policy, self.fragments = program, policy, fragments
        self.uses = definitions(program.body)
        self.op = {op.name: op for op, _ in walk(program.body)}
        self.loops = {op.name: loops for op, loops in walk(program.body)}
        self.paths = {item.name: around for item, around in paths(program.body)}
        self.home = {part: f.name for f in fragments for part in f.components}
        self.ops: dict[str, set[str]] = {f.name: set() for f in fragments}
        self.crossing: dict[tuple[str, str, str], dict[str, list[str]]] = {}
        self.origins: dict[str, frozenset[str]] = {}
        self.of_parameters: set[str] = set()  # operations with results of the network's, as glue
        self.chain: list[tuple[str, str, Op]] = []

    def run(self) -> None:
        """Places the operations of components and everything that they need."""
        self._find_origins()
        for name, op in self.op.items():
            if op.component != "glue":
                self._place(self.home[op.component], name)
            elif op.kind == "report":
                homes = sorted(self._origins_of(op))
                learner = self.home["gradient"]
                self._place(learner if learner in homes or not homes else homes[0], name)

    def _place(self, fragment: str, name: str) -> None:
        if name in self.ops[fragment]:
            return
        self.ops[fragment].add(name)
        for reader in (name, *self._conditions(name)):
            self._need_all(fragment, name, reader)

    def _conditions(self, name: str) -> list[str]:
        return [item.name for item in self.paths[name] if isinstance(item, Branch)]

    def _need_all(self, fragment: str, name: str, reader: str) -> None:
        for variable, definers in sorted(self.uses[reader].items()):
            for definer in sorted(definers - {INITIAL}):
                if variable not in EFFECTS or variable == PARAMETERS:
                    self._need(fragment, name, variable, definer)

    def _need(self, fragment: str, reader: str, variable: str, definer: str) -> None:
        op = self.op.get(definer)
        if op is None:
            return
        self.chain.append((variable, reader, op))
        self._meet(fragment, reader, variable, op)
        self.chain.pop()

    def _meet(self, fragment: str, reader: str, variable: str, op: Op) -> None:
        """Decides how a fragment gets an operation's result: it computes or receives it."""
        definer = op.name
        if op.component != "glue":
            owner = self.home[op.component]
            if owner == fragment:
                return
            if variable == PARAMETERS and "parameters" in self.policy.marks:
                self._cross(owner, fragment, op, variable, reader, "parameters")
                return
            self._refuse(owner, fragment)
        if op.kind == "boundary" and op.mark in self.policy.marks:
            expected = [self.home[c.source] for c in self.policy.cuts if c.mark == op.mark]
            sources = self._origins_of(op)
            sources -= sources if fragment in sources & {*expected} else {fragment}
            learns = fragment in (self.home["gradient"], self.home["update"])
            if not sources and definer in self.of_parameters and not learns:
                sources = frozenset(expected) - {fragment}  # rather than send the parameters here
            if sources:
                source = next((s for s in expected if s in sources), sorted(sources)[0])
                self._send(source, fragment, op, variable, reader, op.mark)
                return
        if OPERATIONS[op.kind].reduces and self._origins_of(op) - {fragment}:
            # The update needs a statistic of the batch, such as for a condition around it.
            giver = self.home["gradient"]
            if any(
                cut.mark == "gradient" and self.home[cut.target] == fragment != giver
                for cut in self.policy.cuts
            ):
                self._send(giver, fragment, op, variable, reader, "gradient")
                return
        self._place(fragment, definer)

    def _send(
        self, source: str, target: str, op: Op, variable: str, reader: str, mark: str
    ) -> None:
        """Lets a fragment compute a value and send it to another."""
        outer, self.chain = self.chain, []
        self._place(source, op.name)
        self.chain = outer
        self._cross(source, target, op, variable, reader, mark)
        # The target of a message under a condition must evaluate the same condition.
        for condition in self._conditions(op.name):
            self._need_all(target, reader, condition)

    def _cross(
        self, source: str, target: str, op: Op, variable: str, reader: str, mark: str
    ) -> None:
        site = op.attr["site"] if op.kind == "boundary" else f"{mark}:{op.name}"
        found = self.crossing.setdefault((site, source, target), {"mark": [mark]})
        for key, value in (("variables", variable), ("site", op.name), ("uses", reader)):
            if value not in found.setdefault(key, []):
                found[key].append(value)

    def _refuse(self, owner: str, fragment: str) -> None:
        """Raises the error for an unmarked crossing.

        It names the smallest value on the way that the owner alone can compute, rather one that
        has a name in the program.
        """
        values = self.program.values
        variable, reader, op = self.chain[-1]
        if variable != PARAMETERS:
            sized = [one for one in reversed(self.chain) if one[0] in values]
            sent = [one for one in sized if self.origins[one[2].name] == {owner}] or sized
            variable, reader, op = min(
                sent,
                key=lambda one: (values[one[0]].message_bytes, one[0] not in one[2].where.text),
            )
        use = self.op[reader]
        cuts = [
            c
            for c in self.policy.cuts
            if self.home[c.source] == owner and self.home[c.target] == fragment
        ]
        usual = self._usual_cut(owner, fragment)
        if variable == PARAMETERS or usual or not cuts:
            mark = (
                "parameters" if variable == PARAMETERS else use.mark or OPERATIONS[use.kind].takes
            )
            ends = usual or (mark or "state", *self._ends((op, owner), (use, fragment)))
            way = f"add Cut{ends} to the policy"
            if not usual and not mark:
                way += f", and pass the value through msrl.boundary({ends[0]!r}, ...)"
            way += f"; or put {ends[1]} and {ends[2]} into one fragment"
        else:
            marks = " or ".join(f'"{c.mark}"' for c in cuts)
            way = f"pass it through msrl.boundary with mark {marks}"
            if {cut.mark for cut in cuts} == {"parameters"}:
                way = self._other_way(owner, fragment, use) or way
        name = "the updated parameters" if variable == PARAMETERS else f"`{variable}`"
        if variable not in (PARAMETERS, *re.findall(r"\w+", f"{op.where} {use.where}")):
            name = "a value without a name"  # of one, ours says nothing
        to = f"\nto\n  {use.where}" if str(use.where) != str(op.where) else ""
        raise PolicyError(
            f"policy {self.policy.name} cuts between {owner} and {fragment}, and {name} would "
            f"cross unmarked from\n  {op.where}{to}\n{way}"
        )

    def _usual_cut(self, owner: str, fragment: str) -> tuple[str, str, str] | None:
        """Returns a usual cut between two fragments that the policy lacks, of a mark on the way."""
        lacking = {op.mark for _, _, op in self.chain} - self.policy.marks
        for mark, source, target in USUAL:
            if mark in lacking and (self.home[source], self.home[target]) == (owner, fragment):
                return mark, source, target
        return None

    def _ends(self, *ends: tuple[Op, str]) -> list[str]:
        """Returns a component of each fragment, that of the operation if it is one."""
        return [
            next(c for c in (op.component, *self.home) if self.home.get(c) == fragment)
            for op, fragment in ends
        ]

    def _other_way(self, owner: str, fragment: str, use: Op) -> str:
        """Says how the owner can compute what the fragment would need its value for."""
        cuts = [
            cut.mark
            for cut in self.policy.cuts
            if self.home[cut.source] == fragment and self.home[cut.target] == owner
        ]
        others = [
            name
            for name, definers in self.uses[use.name].items()
            if name not in EFFECTS and any(self.origins.get(d) == {fragment} for d in definers)
        ]
        if not cuts or not others:
            return ""
        named = [f"`{name}`" for name in others if name in re.findall(r"\w+", use.where.text)]
        what = " and ".join(named) or "the value"
        return (
            f"so that {owner} computes that, pass {what}, which {fragment} makes, through "
            f'msrl.boundary("{cuts[0]}", ...)'
        )

    # ---- where values come from ------------------------------------------------------------

    def _find_origins(self) -> None:
        """Finds the fragments whose components each value comes from, through glue and marks.

        Also finds the values that glue computes from parameters.
        """
        self.origins = {name: frozenset() for name in self.op}
        changed = True
        while changed:
            changed = False
            for name, op in self.op.items():
                found = self.origins[name] | (
                    frozenset({self.home[op.component]})
                    if op.component != "glue"
                    else self._origins_of(op)
                )
                changed |= found != self.origins[name]
                self.origins[name] = found
                if op.component == "glue" and name not in self.of_parameters:
                    makers = set[str]().union(*self.uses[name].values())
                    if PARAMETERS in op.reads or makers & self.of_parameters:
                        self.of_parameters.add(name)
                        changed = True

    def _origins_of(self, op: Op) -> frozenset[str]:
        found: frozenset[str] = frozenset()
        for variable, definers in self.uses[op.name].items():
            if variable not in EFFECTS:
                found |= frozenset().union(*(self.origins.get(d, frozenset()) for d in definers))
        return found

    # ---- messages --------------------------------------------------------------------------

    def messages(self) -> tuple[Message, ...]:
        """Makes a message for each site, source and target."""
        order = list(self.op)
        drafts = []
        for (site, source, target), found in self.crossing.items():
            ops = tuple(sorted(found["site"], key=order.index))
            variables = tuple(
                v for name in ops for v in self.op[name].defines if v in found["variables"]
            )
            drafts.append(
                Message(
                    f"{site} {source}->{target}",
                    found["mark"][0],
                    source,
                    target,
                    variables,
                    ops,
                    tuple(sorted(found["uses"], key=order.index)),
                )
            )
        return positioned(self.program, drafts)


def _check_marks(result: Partition) -> None:
    """Checks that every mark that the policy cuts exists and has the policy's direction.

    A mark must exist even if this plan fuses its two components. A cut in the wrong direction
    permits the same messages, but chooses another sender.
    """
    ops = [op for op, _ in walk(result.program.body)]
    marks = {op.mark for op in ops} | {"parameters"}
    makers_of, users_of = _components_around(result.program)
    for cut in result.policy.cuts:
        users = [op for op in ops if op.component == cut.target]
        makers = [op for op in ops if op.component == cut.source]
        if cut.mark not in marks and users and makers and not cut.optional:
            raise PolicyError(
                f"policy {result.policy.name} cuts at the mark {cut.mark!r} between {cut.source} "
                f"and {cut.target}, and {result.program.algorithm} has no such mark: write "
                f"msrl.boundary({cut.mark!r}, ...) around what reaches\n  {users[0].where}"
            )
        there, back = (
            source in makers_of.get(cut.mark, ()) and target in users_of.get(cut.mark, ())
            for source, target in ((cut.source, cut.target), (cut.target, cut.source))
        )
        if back and not there:
            raise PolicyError(
                f"policy {result.policy.name} has Cut({cut.mark!r}, {cut.source!r}, "
                f"{cut.target!r}) the wrong way round: in {result.program.algorithm} that mark "
                f"goes from {cut.target} to {cut.source}"
            )


def _components_around(program: Program) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Returns the components that make the values of each mark, and those that use them."""
    uses = definitions(program.body)
    op = {op.name: op for op, _ in walk(program.body)}
    makers: dict[str, set[str]] = {}
    users: dict[str, set[str]] = {}
    for name, user in op.items():
        behind: set[str] = set()
        ahead = [name]
        while ahead:
            reader = ahead.pop()
            for variable, definers in uses[reader].items():
                for definer in definers - behind if variable not in EFFECTS else ():
                    if definer in op:
                        behind.add(definer)
                        ahead += [definer] if op[definer].component == "glue" else []
        if user.mark:
            found = {op[other].component for other in behind} - {"glue"}
            makers.setdefault(user.mark, set()).update(found)
        if user.component != "glue":
            for other in behind:
                users.setdefault(op[other].mark, set()).add(user.component)
    return makers, users
