"""Two actors send to two learners in other processes."""

from mindspore_rl.policy import Cut, DistributionPolicy, FragmentRule

POLICY = DistributionPolicy(
    name="Crossed",
    summary="2 actors, 2 learners, on four ranks",
    fragments=(
        FragmentRule("actor", ("environment", "actor"), replicas=2, split="env"),
        FragmentRule("learner", ("replay", "gradient", "update"), replicas=2, split="env"),
    ),
    cuts=(
        Cut("transition", "actor", "replay"),
        Cut("gradient", "gradient", "update"),
        Cut("parameters", "update", "actor"),
    ),
)
