"""Replicates a policy's fragments, and shares environments and agents among replicas."""

from dataclasses import dataclass
from itertools import accumulate, pairwise

from mindspore_rl.errors import PolicyError
from mindspore_rl.policy import WORKERS, DistributionPolicy, FragmentRule


@dataclass(frozen=True)
class Fragment:
    """A fragment of the graph, with the environments and agents of each of its replicas.

    Attributes:
        shares: environments of each replica; all environments if agents are sharded.
        agents: agents of each replica, in a multi-agent environment.
        split: the axis that is sharded over its replicas, `env` or `agent`.
    """

    name: str
    components: tuple[str, ...]
    shares: tuple[range, ...]
    ops: frozenset[str] = frozenset()
    agents: tuple[range, ...] = ()
    split: str = "env"

    @property
    def replicas(self) -> int:
        """The number of processes that run the fragment."""
        return len(self.shares)


def shares(num_envs: int, replicas: int) -> tuple[range, ...]:
    """Divides environments into consecutive shares, as even as possible: 8 on 3 is 3, 3, 2."""
    small, extra = divmod(num_envs, replicas)
    bounds = accumulate((small + (replica < extra) for replica in range(replicas)), initial=0)
    return tuple(range(first, end) for first, end in pairwise(bounds))


def agent_shares(teams: tuple[int, ...], replicas: int) -> tuple[range, ...]:
    """Divides agents into consecutive shares within teams: teams of 3 and 1 on 3 is 2, 1, 1.

    The next replica goes to the team with the most agents per replica. A single replica has all
    agents.
    """
    if replicas == 1:
        return (range(sum(teams)),)
    parts = [1] * len(teams)
    for _ in range(replicas - len(teams)):
        most = max(range(len(teams)), key=lambda team: teams[team] / parts[team])
        parts[most] += 1
    found, first = [], 0
    for team, count in zip(teams, parts, strict=True):
        found += [range(first + s.start, first + s.stop) for s in shares(team, count)]
        first += team
    return tuple(found)


def replicate(
    policy: DistributionPolicy, workers: int, num_envs: int, teams: tuple[int, ...]
) -> tuple[Fragment, ...]:
    """Returns the policy's fragments with their replicas.

    Fragments of one `colocate` group with the same replicas and the same sharded axis are fused.

    Raises:
        PolicyError: there are more replicas than environments or agents to share.
    """
    if workers < 1:
        raise PolicyError(f"workers is {workers}, expected at least 1")

    def count(rule: FragmentRule) -> int:
        return workers if rule.replicas == WORKERS else int(rule.replicas)

    def like(rule: FragmentRule) -> tuple[int, str]:
        return count(rule), _split(policy, rule, teams)

    fused: list[list[FragmentRule]] = []
    for rule in policy.fragments:
        group = next((g for g in policy.colocate if rule.name in g), ())
        home = next((f for f in fused if f[0].name in group and like(f[0]) == like(rule)), None)
        if home is None:
            fused.append([rule])
        else:
            home.append(rule)
    result = []
    for rules in fused:
        replicas, split = like(rules[0])
        several = f"policy {policy.name} with {workers} workers has {replicas} replicas of "
        if split == "env" and replicas > num_envs:
            raise PolicyError(
                f"{several}{rules[0].name} for {num_envs} environments: "
                + (f"ask for at most {num_envs} workers or " if replicas == workers else "ask ")
                + f"for num_envs={replicas}"
            )
        if split == "agent" and replicas > sum(teams):
            raise PolicyError(
                f"{several}{rules[0].name} for {sum(teams)} agents: ask for at most {sum(teams)}"
            )
        if split == "agent" and 1 < replicas < len(teams):
            raise PolicyError(
                f"{several}{rules[0].name} for {len(teams)} teams, and each of several replicas "
                f"holds agents of one team: ask for 1, or {len(teams)} to {sum(teams)}"
            )
        divided = agent_shares(teams, replicas if split == "agent" else 1) if teams else ()
        result.append(
            Fragment(
                "+".join(rule.name for rule in rules),
                tuple(part for rule in rules for part in rule.components),
                shares(num_envs, replicas) if split == "env" else (range(num_envs),) * replicas,
                agents=divided if split == "agent" else divided * replicas,
                split=split,
            )
        )
    return tuple(result)


def _split(policy: DistributionPolicy, rule: FragmentRule, teams: tuple[int, ...]) -> str:
    """Returns the axis that is sharded over a fragment's replicas in this environment."""
    found = [axis for axis in rule.axes or ("env",) if axis == "env" or sum(teams) > 1]
    if not found:
        raise PolicyError(
            f"policy {policy.name} splits {rule.name} by agent, and the environment has one "
            "agent: choose a multi-agent environment or another policy"
        )
    return found[0]
