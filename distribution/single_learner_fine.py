"""Workers step environments only; one learner acts for all of them (like SEED RL)."""

from mindspore_rl.policy import WORKERS, Cut, DistributionPolicy, FragmentRule

POLICY = DistributionPolicy(
    name="SingleLearnerFine",
    summary="n environment workers, 1 learner that acts; observations and actions every step",
    fragments=(
        FragmentRule("environment", ("environment",), replicas=WORKERS, sharded="env"),
        FragmentRule("learner", ("actor", "replay", "gradient", "update")),
    ),
    cuts=(Cut("observation", "environment", "actor"), Cut("action", "actor", "environment")),
)
