"""Environments on dedicated workers, agents on others that learn data-parallel."""

from mindspore_rl.graph.distribution_policy import WORKERS, Cut, DistributionPolicy, FragmentRule

POLICY = DistributionPolicy(
    name="Environments",
    summary="n environment workers and n agents, both split by environment",
    fragments=(
        FragmentRule("environment", ("environment",), replicas=WORKERS, split="env"),
        FragmentRule(
            "agent", ("actor", "replay", "gradient", "update"), replicas=WORKERS, split="env"
        ),
    ),
    cuts=(
        Cut("observation", "environment", "actor"),
        Cut("action", "actor", "environment"),
        Cut("gradient", "gradient", "update"),
    ),
)
