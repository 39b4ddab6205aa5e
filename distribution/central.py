"""Workers compute gradients; a server holds the parameters (parameter server)."""

from mindspore_rl.policy import WORKERS, Cut, DistributionPolicy, FragmentRule

POLICY = DistributionPolicy(
    name="Central",
    summary="n workers with everything but the update, 1 server",
    fragments=(
        FragmentRule(
            "worker",
            ("environment", "actor", "replay", "gradient"),
            replicas=WORKERS,
            sharded="env",
        ),
        FragmentRule("server", ("update",)),
    ),
    cuts=(Cut("gradient", "gradient", "update"), Cut("parameters", "update", "gradient")),
)
