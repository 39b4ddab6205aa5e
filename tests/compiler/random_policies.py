"""Random distribution policies: components grouped, replicated, placed and scheduled at random."""

import random

from mindspore_rl.compiler.partition.partition import USUAL
from mindspore_rl.policy import COMPONENTS, WORKERS, Cut, DistributionPolicy, FragmentRule, Schedule

MORE = (
    ("parameters", "update", "actor"),
    ("priority", "gradient", "replay"),
    ("state", "environment", "actor"),
)
CUTS = tuple(Cut(*ends, optional=True) for ends in (*USUAL, *MORE))
SCHEDULES = (*({},) * 6, {"lag": 1}, {"lag": 2}, {"chunks": 2}, {"act_for": 1})
REFUSED = ("so that it could not run ahead", "asks for chunks=2", "asks for act_for=1")
"""What a schedule may be refused for under a random policy."""


def policy(seed: int) -> DistributionPolicy:
    """Returns the policy of that number; every mark may be cut."""
    rng = random.Random(seed)
    groups: dict[int, list[str]] = {}
    several = rng.randint(1, len(COMPONENTS))
    for component in COMPONENTS:
        groups.setdefault(rng.randrange(several), []).append(component)
    rules = []
    for number, group in groups.items():
        replicas = rng.choice((1, 1, 2, 3, WORKERS, WORKERS))
        sharded = None if replicas == 1 else "env"
        rules.append(FragmentRule(f"part{number}", tuple(group), replicas, sharded))
    names = [rule.name for rule in rules]
    together = rng.sample(names, rng.randint(2, len(names))) if len(names) > 1 else []
    colocate = (tuple(together),) if together and rng.random() < 0.4 else ()
    schedule = Schedule(**rng.choice(SCHEDULES))
    return DistributionPolicy(
        f"Random{seed}", "a random policy", tuple(rules), CUTS, colocate, schedule
    )
