#!/usr/bin/env python3
"""Compares MAPPO on simple_spread_v3 with random actions and BenchMARL; writes algorithms/mappo.md.

.venv/bin/python scripts/score_mappo.py --baseline baseline --runs runs/mappo --seeds 1 2 3

scripts/mappo_baseline.py writes `baseline/SEED.npz`. `runs/mappo/SEED` is a run of ours; a missing
one is trained first. All policies play the same episodes in PettingZoo's environment, with their
most likely actions.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import study
from study import ROOT

from mindspore_rl.environments.registry import make_vector
from mindspore_rl.runtime import checkpoint
from mindspore_rl.trained.evaluate import evaluate

ENVIRONMENT = "pettingzoo:mpe2.simple_spread_v3"
SEED = 1_000_003  # seed of the episodes
EPISODE_STEPS = 25
WANTED = 0.9  # fraction of the gap between random actions and the baseline
PAGE = """# MAPPO on simple_spread_v3

N = 3, 25 steps, local_ratio 0.5. Return of an episode: the sum over its steps of the mean over the
agents. All policies play the same {episodes} episodes in PettingZoo's own environment with their
most likely actions; +- is the standard error. Closed: the fraction of the gap between random
actions and the mean of the baseline's seeds.

The baseline is BenchMARL's MAPPO with the same number of environment steps and the
hyper-parameters of `algorithms/mappo.py` (see `scripts/mappo_baseline.py`). {versions}.

```bash
# in a separate virtual environment:
pip install torch==2.13.0 benchmarl==1.5.2 mpe2
python scripts/mappo_baseline.py --total-steps {total_steps} --out baseline
# in the virtual environment of this repository:
python scripts/score_mappo.py --baseline baseline --runs runs/mappo --seeds {seeds}
```

"""


def main() -> int:
    """Scores all policies. Returns: 1 if one of our seeds closes less than `WANTED` of the gap."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--baseline", type=Path, default=Path("baseline"))
    parser.add_argument("--runs", type=Path, default=Path("runs/mappo"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--policy", default="GPUOnly", help="policy for training missing runs")
    parser.add_argument("--total-steps", type=int, default=600_000)
    args = parser.parse_args()

    random = np.random.default_rng(0)
    shape = (EPISODE_STEPS, args.episodes, 3)
    actions = iter(random.integers(0, 5, shape).astype(np.int32))
    rows = [("random", "", "", play(lambda obs: next(actions), args.episodes))]
    for path in sorted(args.baseline.glob("*.npz")):
        with np.load(path) as saved:
            arrays = {name: saved[name] for name in saved.files}
        steps = int(arrays.pop("env_steps"))
        policy = layers(list(arrays.values()))
        rows.append(("BenchMARL MAPPO", path.stem, f"{steps:,}", play(policy, args.episodes)))
    if len(rows) == 1:
        parser.error(f"no *.npz in {args.baseline}: run scripts/mappo_baseline.py first")
    low = rows[0][-1].mean()
    high = np.mean([returns.mean() for *_, returns in rows[1:]])
    for seed in args.seeds:
        run_dir = args.runs / str(seed)
        if not run_dir.exists():  # with the defaults of algorithms/mappo.py
            flags = {"policy": args.policy, "seed": seed, "total_steps": args.total_steps}
            command = study.msrl("train", "mappo", quiet=True, run_dir=run_dir.absolute(), **flags)
            subprocess.run(command, cwd=ROOT, check=True)
        _, about, _ = checkpoint.load_newest(run_dir / "checkpoints")
        returns = np.array(evaluate(run_dir, args.episodes, SEED, False, ENVIRONMENT))
        rows.append(("ours", seed, f"{about['env_steps']:,}", returns))

    lines, missed = [], 0
    for name, seed, steps, returns in rows:
        closed = (returns.mean() - low) / (high - low)
        missed += name == "ours" and closed < WANTED
        error = returns.std() / len(returns) ** 0.5
        lines.append((name, seed, steps, f"{returns.mean():.2f} +- {error:.2f}", f"{closed:.0%}"))
    table = study.table(("policy", "seed", "environment steps", "return", "closed"), lines)
    page = PAGE.format(
        episodes=args.episodes,
        versions=study.versions("mindspore", "mpe2", "pettingzoo"),
        seeds=" ".join(map(str, args.seeds)),
        total_steps=args.total_steps,
    )
    (ROOT / "algorithms" / "mappo.md").write_text(f"{page}{table}\n")
    print(table)
    return 1 if missed else 0


def play(policy: Callable[[np.ndarray], np.ndarray], episodes: int) -> np.ndarray:
    """Plays one episode in each environment. Returns: `[B]`, reward units."""
    env = make_vector(ENVIRONMENT, range(episodes), SEED)
    obs, returns = env.reset(), np.zeros(episodes)
    for _ in range(EPISODE_STEPS):
        obs, _, reward, _, truncated = env.step(policy(obs))
        returns += reward.mean(axis=1)
    assert truncated.all()
    env.close()
    return returns


def layers(arrays: list[np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a network's most likely action; tanh between layers: weight, bias, weight, ..."""

    def act(obs: np.ndarray) -> np.ndarray:
        for i in range(0, len(arrays), 2):
            obs = (np.tanh(obs) if i else obs) @ arrays[i].T + arrays[i + 1]
        return obs.argmax(axis=-1).astype(np.int32)

    return act


if __name__ == "__main__":
    sys.exit(main())
