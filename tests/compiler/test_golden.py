"""Text of programs after passes; `python -m tests.compiler.test_golden` rewrites the files."""

import tempfile
from pathlib import Path

import pytest

from mindspore_rl import programs
from mindspore_rl.compiler import pipeline
from mindspore_rl.compiler.show.render import render_partition
from mindspore_rl.jobs import registry

GOLDEN = Path(__file__).parent / "golden"
PROGRAMS = Path(__file__).parents[1] / "programs"
PASSES = {"partition": render_partition, "regions": pipeline.stage_text}
"""The projected programs are those of the regions."""
COARSE = "SingleLearnerCoarse"
JOBS = [
    (PROGRAMS / f"{name}.py", policy, env)
    for name, env, policies in (
        ("a2c", "CartPole-v1", (COARSE, "SingleLearnerFine")),
        ("kl_stop", "CartPole-v1", ("MultipleLearners",)),
        ("kept", "CartPole-v1", (COARSE,)),
        ("teams", "graph:simple_tag_v3", (COARSE, "Environments")),
    )
    for policy in policies
]


def _texts(file: Path, policy: str, env: str) -> dict[Path, str]:
    """Returns the texts by golden file."""
    chosen = registry.load_policy(registry.find_policy(policy))
    request = pipeline.JobRequest(file, chosen, programs.trainer_class(file).Config(env=env), 2)
    seen: dict = {}
    with tempfile.TemporaryDirectory() as folder:
        pipeline.prepare(request, Path(folder), seen.__setitem__)
    assert tuple(seen) == pipeline.STAGES
    start = GOLDEN / f"{file.stem}_{policy}"
    return {Path(f"{start}.{name}.txt"): show(seen[name]) for name, show in PASSES.items()}


@pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job[0].stem}_{job[1]}")
def test_passes(job):
    for file, text in _texts(*job).items():
        assert text == file.read_text(), f"{file}: if this is meant, write the files anew"


if __name__ == "__main__":
    for old in GOLDEN.glob("*.txt"):
        old.unlink()
    for job in JOBS:
        for file, text in _texts(*job).items():
            file.write_text(text)
