#!/usr/bin/env python3
"""PPO of RLlib, in one process, with the hyper-parameters of algorithms/ppo.py.

    .peers/rllib/bin/python scripts/peers/rllib.py '{"env": "CartPole-v1", ...}'

The argument gives all keys of the algorithm's configuration. Prints `steps N` after each iteration.
"""

import json
import logging
import sys

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig


def main() -> None:
    """Trains until it is terminated."""
    config = json.loads(sys.argv[1])
    steps = config["num_envs"] * config["num_steps"]
    rate = config["learning_rate"]
    model = DefaultModelConfig(
        fcnet_hiddens=list(config["hidden"]), fcnet_activation="tanh", vf_share_layers=False
    )
    settings = (
        PPOConfig()
        .environment(config["env"])
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
            lr=[[0, rate], [config["total_steps"], 0.0]],
            gamma=config["gamma"],
            lambda_=config["gae_lambda"],
            clip_param=config["clip_coef"],
            # Their value loss is the squared error, ours is half of it and not bounded.
            vf_loss_coeff=config["vf_coef"] / 2,
            vf_clip_param=1e9,
            entropy_coeff=config["ent_coef"],
            use_kl_loss=False,
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
        done = int(result["env_runners"]["num_env_steps_sampled_lifetime"])
        print(f"steps {done}", flush=True)


if __name__ == "__main__":
    main()
