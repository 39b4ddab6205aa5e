"""Dedicated workers step environments; others hold the agents (by agent, if there are several)."""

from mindspore_rl.policy import WORKERS, Cut, DistributionPolicy, FragmentRule

POLICY = DistributionPolicy(
    name="Environments",
    summary="n environment workers and n that hold agents, or shares of the only agent's batch",
    fragments=(
        FragmentRule("environment", ("environment",), replicas=WORKERS, sharded="env"),
        FragmentRule(
            "agent",
            ("actor", "replay", "gradient", "update"),
            replicas=WORKERS,
            sharded=("agent", "env"),
        ),
    ),
    cuts=(
        Cut("observation", "environment", "actor"),
        Cut("state", "environment", "replay", optional=True),
        Cut("action", "actor", "environment"),
        Cut("gradient", "gradient", "update"),
    ),
)
