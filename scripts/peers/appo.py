#!/usr/bin/env python3
"""APPO of Sample Factory (Petrenko et al. 2020): asynchronous actors, as IMPALA has.

    .peers/sample_factory/bin/python scripts/peers/appo.py '{"env": "CartPole-v1", ...}'

The argument gives all keys of the configuration of algorithms/impala.py and the number of actors.
A batch is the trajectories of one actor. Prints `steps N` after each update.
"""

import json
import logging
import sys
import tempfile
from functools import partial

import gymnasium
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner


def make(name, *_, **__):
    """Makes one environment."""
    return gymnasium.make(name)


class Steps(AlgoObserver):
    """Prints the environment steps."""

    def on_training_step(self, runner, training_iteration_since_resume):
        """Called after each update."""
        print(f"steps {sum(runner.env_steps.values())}", flush=True)


def main() -> None:
    """Trains until it is terminated."""
    config = json.loads(sys.argv[1])
    each = config["num_envs"] // config["actors"]
    register_env("task", partial(make, config["env"]))
    words = {
        "env": "task",
        "train_dir": tempfile.mkdtemp(),
        "device": "cpu",
        "algo": "APPO",
        "seed": config["seed"],
        "num_workers": config["actors"],
        "num_envs_per_worker": each,
        "worker_num_splits": 1,
        "rollout": config["num_steps"],
        "batch_size": each * config["num_steps"],
        "num_batches_per_epoch": 1,
        "num_epochs": 1,
        "with_vtrace": False,  # its V-trace fails without a recurrent network
        "gae_lambda": config["return_lambda"],
        "gamma": config["gamma"],
        "learning_rate": config["learning_rate"],
        "adam_eps": config["adam_eps"],
        "exploration_loss_coeff": config["ent_coef"],
        "value_loss_coeff": config["vf_coef"],
        "max_grad_norm": config["max_grad_norm"],
        "use_rnn": False,
        "actor_critic_share_weights": False,
        "nonlinearity": "tanh",
        "normalize_input": False,
        "normalize_returns": False,
        "train_for_env_steps": config["total_steps"],
        "save_every_sec": 1_000_000,
        "experiment_summaries_interval": 1_000_000,
        "with_wandb": False,
    }
    argv = [f"--{key}={value}" for key, value in words.items()]
    argv += ["--encoder_mlp_layers", *map(str, config["hidden"])]
    parser, _ = parse_sf_args(argv)
    _, runner = make_runner(parse_full_cfg(parser, argv))
    runner.register_observer(Steps())
    logging.disable(logging.CRITICAL)
    runner.init()
    runner.run()


if __name__ == "__main__":
    main()
