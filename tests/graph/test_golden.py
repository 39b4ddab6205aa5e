"""The text form of PPO's partitions; `python -m tests.graph.test_golden` writes the files anew."""

from pathlib import Path

import pytest

from mindspore_rl import programs, registry
from mindspore_rl.graph.render import render_partition
from mindspore_rl.pipeline import JobRequest, analyse

GOLDEN = Path(__file__).parent / "golden"
POLICIES = {
    "single_learner_coarse": "CartPole-v1",
    "multiple_learners": "CartPole-v1",
    "gpu_only": "graph:CartPole-v1",
}


def _text(policy: str) -> str:
    file = registry.find_algorithm("ppo")
    config = programs.trainer_class(file).Config(env=POLICIES[policy])
    chosen = programs.load_policy(registry.find_policy(policy))
    return render_partition(analyse(JobRequest(file, chosen, config, 3)))


@pytest.mark.parametrize("policy", POLICIES)
def test_partition_of_ppo(policy):
    assert _text(policy) == (GOLDEN / f"ppo_{policy}.txt").read_text()


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name in POLICIES:
        (GOLDEN / f"ppo_{name}.txt").write_text(_text(name))
