"""The text of programs after passes; `python -m tests.graph.test_golden` writes the files anew."""

import tempfile
from pathlib import Path

import pytest

from mindspore_rl import pipeline, programs, registry
from mindspore_rl.graph.render import render_partition

GOLDEN = Path(__file__).parent / "golden"
PROGRAMS = Path(__file__).parents[1] / "programs"
PASSES = {"partition": render_partition, "project": pipeline.stage_text}
PASSES["regions"] = pipeline.stage_text
JOBS = [
    (PROGRAMS / "a2c.py", "CartPole-v1"),
    (PROGRAMS / "kl_stop.py", "CartPole-v1"),
    (PROGRAMS / "teams.py", "graph:simple_tag_v3"),
]
POLICIES = ("SingleLearnerCoarse", "MultipleLearners")
PPO = {"gpu_only": "graph:CartPole-v1", "single_learner_coarse": "CartPole-v1"}


def _texts(file: Path, policy: str, env: str) -> dict[str, str]:
    """By pass."""
    chosen = registry.load_policy(registry.find_policy(policy))
    request = pipeline.JobRequest(file, chosen, programs.trainer_class(file).Config(env=env), 2)
    seen: dict = {}
    with tempfile.TemporaryDirectory() as folder:
        pipeline.prepare(request, Path(folder), seen.__setitem__)
    return {name: text(seen[name]) for name, text in PASSES.items()}


def _files() -> dict[str, tuple[Path, str, str]]:
    found = {
        f"{file.stem}_{policy}": (file, policy, env) for file, env in JOBS for policy in POLICIES
    }
    ppo = registry.find_algorithm("ppo")
    return found | {f"ppo_{policy}": (ppo, policy, env) for policy, env in PPO.items()}


@pytest.mark.parametrize("name", _files())
def test_passes(name):
    for stage, text in _texts(*_files()[name]).items():
        file = GOLDEN / f"{name}.{stage}.txt"
        if name.startswith("ppo") and stage != "partition":
            continue  # long, and much like the others
        assert text == file.read_text(), f"{file}: if this is meant, write the files anew"


if __name__ == "__main__":
    for old in GOLDEN.glob("*.txt"):
        old.unlink()
    for name, job in _files().items():
        for stage, text in _texts(*job).items():
            if not name.startswith("ppo") or stage == "partition":
                (GOLDEN / f"{name}.{stage}.txt").write_text(text)
