"""Text of programs after passes; `python -m tests.compiler.test_golden` rewrites the files."""

import tempfile
from pathlib import Path

import pytest

from mindspore_rl import programs
from mindspore_rl.compiler import pipeline
from mindspore_rl.compiler.show.render import render_partition
from mindspore_rl.jobs import registry
from tests.tiers import quick

GOLDEN = Path(__file__).parent / "golden"
PROGRAMS = Path(__file__).parents[1] / "programs"
PASSES = {
    "partition": render_partition,
    "project": pipeline.stage_text,
    "regions": pipeline.stage_text,
}
JOBS = [
    (file, policy, env, tuple(PASSES))
    for file, env in (
        (PROGRAMS / "a2c.py", "CartPole-v1"),
        (PROGRAMS / "kl_stop.py", "CartPole-v1"),
        (PROGRAMS / "teams.py", "graph:simple_tag_v3"),
    )
    for policy in ("SingleLearnerCoarse", "MultipleLearners")
]
# Its other texts are long and similar to these.
JOBS += [
    (registry.find_algorithm("ppo"), "gpu_only", "graph:CartPole-v1", ("partition",)),
    (registry.find_algorithm("ppo"), "single_learner_coarse", "CartPole-v1", ("partition",)),
]


def _texts(file: Path, policy: str, env: str, passes: tuple[str, ...]) -> dict[Path, str]:
    """Returns the texts by golden file."""
    chosen = registry.load_policy(registry.find_policy(policy))
    request = pipeline.JobRequest(file, chosen, programs.trainer_class(file).Config(env=env), 2)
    seen: dict = {}
    with tempfile.TemporaryDirectory() as folder:
        pipeline.prepare(request, Path(folder), seen.__setitem__)
    return {
        GOLDEN / f"{file.stem}_{policy}.{name}.txt": PASSES[name](seen[name]) for name in passes
    }


@pytest.mark.parametrize(
    "job", quick([(job,) for job in JOBS], *range(6)), ids=lambda job: f"{job[0].stem}_{job[1]}"
)
def test_passes(job):
    for file, text in _texts(*job).items():
        assert text == file.read_text(), f"{file}: if this is meant, write the files anew"


if __name__ == "__main__":
    for old in GOLDEN.glob("*.txt"):
        old.unlink()
    for job in JOBS:
        for file, text in _texts(*job).items():
            file.write_text(text)
