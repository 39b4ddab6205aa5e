#!/usr/bin/env python3
"""PPO, A2C, SAC, TQC, TD3, DDPG, DQN or QR-DQN of Stable-Baselines3, or of SBX, as configured.

    .peers/torch/bin/python scripts/peers/sb3.py '{"library": "sb3", "algorithm": "ppo", ...}'

The argument gives `library`, `algorithm`, `stop_return` and all keys of the algorithm's
configuration. Prints `steps N` before each rollout; ends at the first mean return of the last 100
episodes that reaches `stop_return`, and prints that.
"""

import json
import runpy
import sys
from typing import Any

import numpy as np
import sb3_contrib
import stable_baselines3
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn


class Marks(BaseCallback):
    """Prints the number of steps, and ends training at a mean return."""

    def __init__(self, stop_return: float | None) -> None:
        super().__init__()
        self.stop_return, self.reached = stop_return, False

    def _on_rollout_start(self) -> None:
        print(f"steps {self.num_timesteps}", flush=True)

    def _on_step(self) -> bool:
        episodes = self.model.ep_info_buffer
        if self.stop_return is not None and self.locals["dones"].any() and len(episodes) == 100:
            self.reached = sum(e["r"] for e in episodes) / 100 >= self.stop_return
        return not self.reached


class Residual(nn.Module):
    """Two convolutions with a residual connection (Espeholt et al. 2018)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            *(nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)),
            *(nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)),
        )

    def forward(self, x: Any) -> Any:
        """Maps [N, C, H, W] to the same."""
        return x + self.convolutions(x)


class ImpalaTorso(BaseFeaturesExtractor):
    """The torso of IMPALA (Espeholt et al. 2018), as ours."""

    def __init__(self, space: Any, features_dim: int) -> None:
        super().__init__(space, features_dim)
        channels, height, width = space.shape
        layers: list[nn.Module] = []
        for out in (16, 32, 32):
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
            layers += [Residual(out), Residual(out)]
            height, width, channels = -(-height // 2), -(-width // 2), out
        dense = nn.Linear(channels * height * width, features_dim)
        self.layers = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), dense, nn.ReLU())

    def forward(self, images: Any) -> Any:
        """Maps [N, C, H, W] in [0, 1] to [N, features_dim]."""
        return self.layers(images)


def library_of(config: dict[str, Any]) -> Any:
    """Imports the library that a configuration names."""
    if config["library"] == "sb3":
        return stable_baselines3
    import sbx  # noqa: PLC0415 (it brings JAX)

    return sbx


def on_policy(config: dict[str, Any], env: Any) -> Any:
    """Makes PPO or A2C."""
    rate = config["learning_rate"]
    anneal = config.get("anneal_learning_rate", True)  # A2C always anneals
    hidden, steps = list(config["hidden"]), config["num_steps"]
    arguments = {
        "learning_rate": (lambda left: rate * left) if anneal else rate,
        "n_steps": steps,
        "gamma": config["gamma"],
        "ent_coef": config["ent_coef"],
        # Their value loss is the squared error, ours is half of it.
        "vf_coef": config["vf_coef"] / 2,
        "max_grad_norm": config["max_grad_norm"],
        "policy_kwargs": {
            "net_arch": {"pi": hidden, "vf": hidden},
            "optimizer_kwargs": {"eps": config["adam_eps"]},
        },
        "seed": config["seed"],
        "device": "cpu",
    }
    network = "MlpPolicy"
    if config["torso"] != "mlp":  # one torso for policy and value, as ours
        network = "CnnPolicy"
        arguments["policy_kwargs"] |= {
            "net_arch": [],
            "features_extractor_kwargs": {"features_dim": hidden[0]},
        }
        if config["torso"] == "impala":
            arguments["policy_kwargs"]["features_extractor_class"] = ImpalaTorso
    if config["algorithm"] == "a2c":
        arguments |= {"use_rms_prop": False, "gae_lambda": config["return_lambda"]}
        return A2C(network, env, **arguments)
    arguments |= {
        "batch_size": config["num_envs"] * steps // config["num_minibatches"],
        "n_epochs": config["update_epochs"],
        "gae_lambda": config["gae_lambda"],
        "clip_range": config["clip_coef"],
        "normalize_advantage": config["normalise_advantage"],
    }
    if config["library"] == "sbx":
        arguments["policy_kwargs"]["ortho_init"] = True
    return library_of(config).PPO(network, env, **arguments)


def off_policy(config: dict[str, Any], env: Any) -> Any:
    """Makes SAC, TD3 or DQN; they have neither priorities nor windows."""
    arguments = {
        "learning_rate": config["learning_rate"],
        "buffer_size": config["replay_size"],
        "learning_starts": config["learning_starts"],
        "batch_size": config["batch_size"],
        "gamma": config["gamma"],
        "train_freq": config["num_steps"],
        "policy_kwargs": {"net_arch": list(config["hidden"])},
        "seed": config["seed"],
        "device": "cpu",
    }
    library, algorithm = library_of(config), config["algorithm"]
    if algorithm in ("dqn", "qr_dqn"):
        arguments["gradient_steps"] = config["updates"]
        if config["library"] == "sb3":  # SBX does not clip gradients
            arguments["max_grad_norm"] = config["max_grad_norm"]
        if algorithm == "dqn":
            return library.DQN("MlpPolicy", env, **arguments)
        arguments["policy_kwargs"]["n_quantiles"] = config["quantiles"]
        return sb3_contrib.QRDQN("MlpPolicy", env, **arguments)
    arguments["tau"] = config["tau"]
    if algorithm == "sac":
        arguments["gradient_steps"] = config["updates"]
        if not config["quantiles"]:
            return library.SAC("MlpPolicy", env, **arguments)
        arguments["policy_kwargs"]["n_quantiles"] = config["quantiles"]
        arguments["top_quantiles_to_drop_per_net"] = config["dropped"]
        make = sb3_contrib.TQC if config["library"] == "sb3" else library.TQC
        return make("MlpPolicy", env, **arguments)
    shape = env.action_space.shape
    arguments |= {
        "gradient_steps": config["policy_updates"] * config["policy_delay"],
        "action_noise": NormalActionNoise(np.zeros(shape), np.full(shape, config["exploration"])),
    }
    if not config["twin"]:
        return library.DDPG("MlpPolicy", env, **arguments)
    arguments |= {
        "policy_delay": config["policy_delay"],
        "target_policy_noise": config["smoothing"],
        "target_noise_clip": config["most_smoothing"],
    }
    return library.TD3("MlpPolicy", env, **arguments)


def main() -> None:
    """Trains."""
    config: dict[str, Any] = json.loads(sys.argv[1])
    file, _, function = config["env"].partition(":")
    make_env: Any = runpy.run_path(file)[function] if function else file
    env = make_vec_env(make_env, config["num_envs"], seed=config["seed"])
    if config.get("normalise_obs") or config.get("normalise_reward"):
        env = VecNormalize(
            env,
            norm_obs=config["normalise_obs"],
            norm_reward=config["normalise_reward"],
            gamma=config["gamma"],
        )
    make = off_policy if config["algorithm"] in ("sac", "td3", "dqn", "qr_dqn") else on_policy
    model = make(config, env)
    marks = Marks(config.get("stop_return"))
    model.learn(config["total_steps"], callback=marks)
    if marks.reached:
        print("solved", flush=True)
    episodes = [episode["r"] for episode in model.ep_info_buffer]
    print(f"mean return {sum(episodes) / max(len(episodes), 1):.1f}", flush=True)


if __name__ == "__main__":
    main()
