"""Each device runs the whole loop in one compiled cell (like Anakin and WarpDrive)."""

from mindspore_rl.policy import WORKERS, Cut, DistributionPolicy, FragmentRule

POLICY = DistributionPolicy(
    name="GPUOnly",
    summary="n copies of the whole loop, environment included, each one compiled cell",
    fragments=(
        FragmentRule(
            "loop",
            ("environment", "actor", "replay", "gradient", "update"),
            replicas=WORKERS,
            sharded="env",
            compiled=("environment",),
        ),
    ),
    cuts=(Cut("gradient", "gradient", "update"),),
)
