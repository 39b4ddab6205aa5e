"""What a policy's schedule asks for, held against the cut program."""

from mindspore_rl.errors import PolicyError
from mindspore_rl.graph.distribution_policy import ARRIVAL
from mindspore_rl.graph.partition import Partition


def check_schedule(partition: Partition) -> None:
    """Refuses a schedule that cannot be served.

    Raises:
        PolicyError: with the reason.
    """
    policy = partition.policy
    if policy.schedule.order == ARRIVAL:
        raise PolicyError(f"policy {policy.name}: order={ARRIVAL} is not available yet")
    if policy.schedule.chunks != 1:
        raise PolicyError(
            f"policy {policy.name}: chunks={policy.schedule.chunks} is not available yet, "
            "expected 1"
        )
