#!/usr/bin/env python3
"""PPO, IMPALA or DQN of RLlib, with the hyper-parameters of our file of the same name.

    .peers/rllib/bin/python scripts/peers/rllib.py '{"algorithm": "ppo", "env": "CartPole-v1", ...}'

The argument gives the algorithm and all keys of its configuration. PPO runs in one process; IMPALA
and DQN have as many processes for environments as `actors` says, and a learner. IMPALA's batch is
the trajectories of one of them, as in Sample Factory's row. DQN has a prioritised replay. Prints
`steps N` after each iteration; for DQN, the steps of which its optimizer has made the updates.
"""

import json
import logging
import sys

from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from torch.optim.optimizer import register_optimizer_step_post_hook


def on_policy(settings, config):
    """Returns settings with what PPO and IMPALA have in common."""
    model = DefaultModelConfig(
        fcnet_hiddens=list(config["hidden"]), fcnet_activation="tanh", vf_share_layers=False
    )
    rate = [[0, config["learning_rate"]], [config["total_steps"], 0.0]]
    return settings.training(lr=rate, entropy_coeff=config["ent_coef"]).rl_module(
        model_config=model
    )


def ppo(config):
    """Returns PPO's settings."""
    steps = config["num_envs"] * config["num_steps"]
    settings = (
        PPOConfig()
        # Without separate processes for environments: faster here than one or two of them.
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=config["num_envs"],
            rollout_fragment_length=config["num_steps"],
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=steps,
            minibatch_size=steps // config["num_minibatches"],
            num_epochs=config["update_epochs"],
            lambda_=config["gae_lambda"],
            clip_param=config["clip_coef"],
            # Their value loss is the squared error, ours is half of it and not bounded.
            vf_loss_coeff=config["vf_coef"] / 2,
            vf_clip_param=1e9,
            use_kl_loss=False,
        )
    )
    return on_policy(settings, config)


def impala(config):
    """Returns IMPALA's settings."""
    each = config["num_envs"] // config["actors"]
    settings = (
        IMPALAConfig()
        .env_runners(
            num_env_runners=config["actors"],
            num_envs_per_env_runner=each,
            rollout_fragment_length=config["num_steps"],
        )
        # In the main process, whose thread it is: a core is left for each actor.
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=each * config["num_steps"],
            vtrace_clip_rho_threshold=config["rho_bar"],
            vf_loss_coeff=config["vf_coef"],  # of half of the squared error, as ours
        )
        .reporting(min_time_s_per_iteration=1)
    )
    return on_policy(settings, config)


def dqn(config):
    """Returns DQN's settings, of the new API stack: with the old one its 2.60 does not start."""
    each, (*body, head) = config["num_envs"] // config["actors"], config["hidden"]
    model = DefaultModelConfig(
        fcnet_hiddens=body,
        fcnet_activation="relu",
        head_fcnet_hiddens=[head],
        head_fcnet_activation="relu",
    )
    replay = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": config["replay_size"]}
    # RLlib counts one process more than there are.
    counted = each * config["num_steps"] * (config["actors"] + 1)
    return (
        DQNConfig()
        .env_runners(
            num_env_runners=config["actors"],
            num_envs_per_env_runner=each,
            rollout_fragment_length=config["num_steps"],
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=config["batch_size"],
            training_intensity=config["updates"] * config["batch_size"] / counted,
            replay_buffer_config=replay
            | {"alpha": config["priority"], "beta": config["importance"]},
            num_steps_sampled_before_learning_starts=config["learning_starts"],
            target_network_update_freq=config["target_every"] * _steps_an_update(config),
            lr=config["learning_rate"],
            n_step=config["n_step"],
            double_q=config["double_q"],
            dueling=config["duelling"],
            epsilon=config["epsilon_end"],
        )
        .rl_module(model_config=model)
        .reporting(min_sample_timesteps_per_iteration=0)
    )


def _steps_an_update(config):
    return config["num_envs"] * config["num_steps"] // config["updates"]


def main() -> None:
    """Trains until it is terminated."""
    config, updates = json.loads(sys.argv[1]), []
    settings = (
        {"ppo": ppo, "impala": impala, "dqn": dqn}[config["algorithm"]](config)
        .environment(config["env"])
        .training(
            gamma=config["gamma"], grad_clip=config["max_grad_norm"], grad_clip_by="global_norm"
        )
        .debugging(seed=config["seed"], log_level="ERROR")
    )
    logging.getLogger("ray").setLevel(logging.ERROR)
    algorithm, done = settings.build_algo(), 0
    register_optimizer_step_post_hook(lambda *_: updates.append(1))
    while done < config["total_steps"]:
        result = algorithm.train()
        if config["algorithm"] == "dqn":
            done = len(updates) * _steps_an_update(config)
        else:
            found = result.get("env_runners", {})  # empty until an actor has sent something
            done = int(found.get("num_env_steps_sampled_lifetime", done))
        if done:
            print(f"steps {done}", flush=True)


if __name__ == "__main__":
    main()
