"""Pairs of an actor and a learner; learning is data-parallel (like Sebulba)."""

from mindspore_rl.policy import WORKERS, Cut, DistributionPolicy, FragmentRule

POLICY = DistributionPolicy(
    name="MultipleLearners",
    summary="n actors and n learners, fused in pairs; one gradient reduction a minibatch",
    fragments=(
        FragmentRule("actor", ("environment", "actor"), replicas=WORKERS, sharded="env"),
        FragmentRule("learner", ("replay", "gradient", "update"), replicas=WORKERS, sharded="env"),
    ),
    cuts=(
        Cut("transition", "actor", "replay"),
        Cut("gradient", "gradient", "update"),
        Cut("parameters", "update", "actor"),
    ),
    colocate=(("actor", "learner"),),
)
