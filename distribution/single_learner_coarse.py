"""Actors hold environments and policies; one learner trains on whole trajectories (like Acme)."""

from mindspore_rl.policy import WORKERS, Cut, DistributionPolicy, FragmentRule

POLICY = DistributionPolicy(
    name="SingleLearnerCoarse",
    summary="n actors with environments, 1 learner; one trajectory message an iteration",
    fragments=(
        FragmentRule("actor", ("environment", "actor"), replicas=WORKERS, sharded="env"),
        FragmentRule("learner", ("replay", "gradient", "update")),
    ),
    cuts=(Cut("transition", "actor", "replay"), Cut("parameters", "update", "actor")),
)
