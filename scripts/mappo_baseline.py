"""Trains BenchMARL's MAPPO on simple_spread_v3, as the baseline of our MAPPO.

Needs a separate virtual environment (PyTorch): pip install torch==2.13.0 benchmarl==1.5.2 mpe2
    python scripts/mappo_baseline.py --seeds 1 2 3 --total-steps 600000 --out baseline
Writes baseline/SEED.npz, the policy's layers, which scripts/score_mappo.py plays in PettingZoo's
environment. Hyper-parameters are those of algorithms/mappo.py. The worlds are a batch, because
stepping mpe2's one by one is slow; rewards and observations are first compared with mpe2's.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarl.algorithms import MappoConfig
from benchmarl.environments.common import Task, TaskClass
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from mpe2 import simple_spread_v3
from tensordict import TensorDict
from torchrl.data import Binary, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

AGENTS, STEPS = 3, 25
MOVES = torch.tensor([[0, 0], [-5, 0], [5, 0], [0, -5], [0, 5]], dtype=torch.float32)


class Spread(EnvBase):
    """B worlds of simple_spread_v3: N = 3, local_ratio 0.5, discrete actions."""

    batch_locked = True

    def __init__(self, num_envs: int, seed: int | None, device: str) -> None:
        super().__init__(device=device, batch_size=[num_envs])
        shape = (num_envs, AGENTS)
        group = {
            "observation": Unbounded((*shape, 18)),
            "action": Categorical(5, shape),
            "reward": Unbounded((*shape, 1)),
        }
        for name, spec in group.items():
            whole = Composite({"agents": Composite({name: spec}, shape=shape)}, shape=(num_envs,))
            setattr(self, f"{name}_spec", whole)
        flags = ("done", "terminated", "truncated")
        self.done_spec = Composite(
            {flag: Binary(1, (num_envs, 1), dtype=torch.bool) for flag in flags}, shape=(num_envs,)
        )
        self.random = torch.Generator()
        self._set_seed(seed or 0)
        self.place = torch.zeros(num_envs, AGENTS, 2)
        self.speed = torch.zeros(num_envs, AGENTS, 2)
        self.landmark = torch.zeros(num_envs, AGENTS, 2)
        self.elapsed = torch.zeros(num_envs, 1)

    def _set_seed(self, seed: int | None) -> None:
        self.random.manual_seed(seed or 0)

    def _reset(self, tensordict: TensorDict | None = None, **_: object) -> TensorDict:
        new = torch.ones(self.batch_size, dtype=torch.bool)
        if tensordict is not None and "_reset" in tensordict.keys():  # noqa: SIM118 (TensorDict has no `in`)
            new = tensordict["_reset"].reshape(-1)
        shape = (int(new.sum()), AGENTS, 2)
        self.place[new] = torch.rand(shape, generator=self.random) * 2 - 1
        self.landmark[new] = torch.rand(shape, generator=self.random) * 2 - 1
        self.speed[new] = 0.0
        self.elapsed[new] = 0.0
        return self._outcome(torch.zeros(*self.batch_size, 1, dtype=torch.bool))

    def _step(self, tensordict: TensorDict) -> TensorDict:
        delta = self.place[:, :, None] - self.place[:, None]
        distance = delta.norm(dim=-1) + torch.eye(AGENTS)
        soft = torch.nn.functional.softplus((0.3 - distance) / 1e-3, threshold=80) * 1e-3
        force = (delta / distance[..., None] * soft[..., None] * 100).sum(2)
        force = force + MOVES[tensordict["agents", "action"]]
        self.place = self.place + self.speed * 0.1
        self.speed = self.speed * 0.75 + force * 0.1
        self.elapsed = self.elapsed + 1
        near = (torch.cdist(self.place, self.place) + torch.eye(AGENTS)) < 0.3
        uncovered = torch.cdist(self.place, self.landmark).amin(1).sum(1)
        outcome = self._outcome(self.elapsed >= STEPS)
        reward = -0.5 * near.sum(2) - 0.5 * uncovered[:, None]
        outcome["agents", "reward"] = reward[..., None]
        return outcome

    def _outcome(self, truncated: torch.Tensor) -> TensorDict:
        others = [[other for other in range(AGENTS) if other != a] for a in range(AGENTS)]
        flat = (*self.batch_size, AGENTS, -1)
        parts = (
            self.speed,
            self.place,
            (self.landmark[:, None] - self.place[:, :, None]).reshape(flat),
            (self.place[:, others] - self.place[:, :, None]).reshape(flat),
            torch.zeros(*self.batch_size, AGENTS, 4),
        )
        agents = TensorDict({"observation": torch.cat(parts, -1)}, (*self.batch_size, AGENTS))
        never = torch.zeros_like(truncated)
        ends = {"done": truncated, "truncated": truncated, "terminated": never}
        return TensorDict({"agents": agents, **ends}, self.batch_size)


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


class SpreadTask(TaskClass):
    """The task in the form that BenchMARL requires."""

    supports_continuous_actions = has_render = _always(False)
    supports_discrete_actions = _always(True)
    max_steps = _always(STEPS)
    group_map = _always({"agents": [f"agent_{i}" for i in range(AGENTS)]})
    info_spec = state_spec = action_mask_spec = _always(None)
    env_name = staticmethod(_always("particle"))

    def get_env_fun(self, num_envs, continuous_actions, seed, device):
        """See `TaskClass`."""
        return lambda: Spread(num_envs, seed, device)

    def observation_spec(self, env):
        """See `TaskClass`."""
        return env.full_observation_spec_unbatched.clone()

    def action_spec(self, env):
        """See `TaskClass`."""
        return env.full_action_spec_unbatched


class Tasks(Task):
    """The enumeration of tasks that BenchMARL requires."""

    SIMPLE_SPREAD = None
    associated_class = staticmethod(_always(SpreadTask))


class LinearDecay(Callback):
    """Decreases the learning rate to 0 over the run, as ours does; BenchMARL has no schedule."""

    def on_train_end(self, training_td: TensorDict, group: str) -> None:
        """Sets the rate of the next iteration."""
        config = self.experiment.config
        left = max(0.0, 1 - self.experiment.total_frames / config.max_n_frames)
        for optimizer in self.experiment.optimizers[group].values():
            for parameters in optimizer.param_groups:
                parameters["lr"] = config.lr * left


def compare_with_mpe2() -> None:
    """Plays 40 episodes in both, and stops if observations or rewards differ."""
    env, random = Spread(1, 0, "cpu"), np.random.default_rng(0)
    theirs = simple_spread_v3.parallel_env(N=3, local_ratio=0.5, max_cycles=STEPS)
    for episode in range(40):
        obs, _ = theirs.reset(seed=episode)
        env.reset()
        first = torch.tensor(np.stack(list(obs.values())))
        env.place = first[None, :, 2:4].clone()
        env.landmark = (first[0, 4:10].reshape(3, 2) + first[0, 2:4])[None]
        for _ in range(STEPS):
            action = random.integers(0, 5, AGENTS)
            obs, reward, *_ = theirs.step(dict(zip(theirs.agents, action.tolist(), strict=True)))
            agents = TensorDict({"action": torch.tensor(action)[None]}, [1, AGENTS])
            got = env._step(TensorDict({"agents": agents}, [1]))["agents"]
            np.testing.assert_allclose(
                got["observation"][0], np.stack(list(obs.values())), atol=1e-4
            )
            np.testing.assert_allclose(got["reward"][0, :, 0], list(reward.values()), atol=1e-4)


def train(seed: int, total_steps: int, out: Path) -> None:
    """Trains one policy and writes its layers."""
    config = ExperimentConfig.get_from_yaml()
    config.max_n_frames = total_steps
    config.prefer_continuous_actions = False
    config.on_policy_collected_frames_per_batch = 2400
    config.on_policy_n_envs_per_worker = 96
    config.on_policy_minibatch_size = 480
    config.on_policy_n_minibatch_iters = 10
    config.lr = 1e-3
    config.adam_eps = 1e-5
    config.gamma = 0.95
    config.clip_grad_val = 0.5
    config.evaluation = False
    config.loggers = []
    config.create_json = False
    config.save_folder = str(out)
    algorithm = MappoConfig.get_from_yaml()
    algorithm.entropy_coef = 0.01
    algorithm.lmbda = 0.95
    model = MlpConfig.get_from_yaml()
    model.num_cells = [64, 64]
    experiment = Experiment(
        task=Tasks.SIMPLE_SPREAD.get_task({}),
        algorithm_config=algorithm,
        model_config=model,
        critic_model_config=model,
        seed=seed,
        config=config,
        callbacks=[LinearDecay()],
    )
    started, used = time.time(), time.process_time()
    experiment.run()
    print(
        f"seed {seed}: {experiment.total_frames} steps, {time.time() - started:.0f} s "
        f"({time.process_time() - used:.0f} s of CPU), last return {experiment.mean_return:.2f}"
    )
    # Weight and bias of each layer in turn, as scripts/score_mappo.py reads them.
    parameters = experiment.group_policies["agents"].state_dict().items()
    layers = [value.numpy() for name, value in parameters if name.endswith(("weight", "bias"))]
    np.savez(out / f"{seed}.npz", *layers, env_steps=experiment.total_frames)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--total-steps", type=int, default=600_000)
    parser.add_argument("--out", type=Path, default=Path("baseline"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    compare_with_mpe2()
    for seed in arguments.seeds:
        train(seed, arguments.total_steps, arguments.out)


if __name__ == "__main__":
    main()
