#!/usr/bin/env python3
"""PPO or IMPALA of RLlib, with the hyper-parameters of algorithms/ppo.py or algorithms/impala.py.

    .peers/rllib/bin/python scripts/peers/rllib.py '{"algorithm": "ppo", "env": "CartPole-v1", ...}'

The argument gives the algorithm and all keys of its configuration. PPO runs in one process; IMPALA
has as many processes for environments as `actors` says, and a learner, whose batch is the
trajectories of one of them, as in Sample Factory's row. Prints `steps N` after each iteration.
"""

import json
import logging
import sys

from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig


def ppo(config):
    """Returns PPO's settings."""
    steps = config["num_envs"] * config["num_steps"]
    return (
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


def impala(config):
    """Returns IMPALA's settings."""
    each = config["num_envs"] // config["actors"]
    return (
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


def main() -> None:
    """Trains until it is terminated."""
    config = json.loads(sys.argv[1])
    rate = config["learning_rate"]
    model = DefaultModelConfig(
        fcnet_hiddens=list(config["hidden"]), fcnet_activation="tanh", vf_share_layers=False
    )
    settings = (
        {"ppo": ppo, "impala": impala}[config["algorithm"]](config)
        .environment(config["env"])
        .training(
            lr=[[0, rate], [config["total_steps"], 0.0]],
            gamma=config["gamma"],
            entropy_coeff=config["ent_coef"],
            grad_clip=config["max_grad_norm"],
            grad_clip_by="global_norm",
        )
        .rl_module(model_config=model)
        .debugging(seed=config["seed"], log_level="ERROR")
    )
    logging.getLogger("ray").setLevel(logging.ERROR)
    algorithm, done = settings.build_algo(), 0
    while done < config["total_steps"]:
        result = algorithm.train()
        found = result.get("env_runners", {})  # empty until an actor has sent something
        done = int(found.get("num_env_steps_sampled_lifetime", done))
        print(f"steps {done}", flush=True)


if __name__ == "__main__":
    main()
