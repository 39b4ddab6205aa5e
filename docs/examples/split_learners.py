"""Any number of actors send trajectories to two learners in other processes."""

from mindspore_rl.policy import WORKERS, Cut, DistributionPolicy, FragmentRule

POLICY = DistributionPolicy(
    name="SplitLearners",
    summary="n actors with environments, 2 learners with half of the environments each",
    fragments=(
        FragmentRule("actor", ("environment", "actor"), replicas=WORKERS, sharded="env"),
        FragmentRule("learner", ("replay", "gradient", "update"), replicas=2, sharded="env"),
    ),
    cuts=(
        Cut("transition", "actor", "replay"),
        Cut("gradient", "gradient", "update"),
        Cut("parameters", "update", "actor"),
    ),
)
