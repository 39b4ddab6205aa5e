"""Keys of a configuration under the names that other libraries give them."""

from collections.abc import Iterable

_KEYS = {
    "lr": "learning_rate",
    "n_steps": "num_steps n_step",
    "rollout_fragment_length": "num_steps",
    "n_envs": "num_envs",
    "n_epochs": "update_epochs",
    "num_epochs": "update_epochs",
    "num_sgd_iter": "update_epochs",
    "batch_size": "num_minibatches",
    "minibatch_size": "num_minibatches",
    "clip_range": "clip_coef",
    "clip_param": "clip_coef",
    "entropy_coeff": "ent_coef",
    "vf_loss_coeff": "vf_coef",
    "lambda": "gae_lambda",
    "grad_clip": "max_grad_norm",
    "buffer_size": "replay_size",
    "gradient_steps": "updates",
    "target_update_interval": "target_every",
    "target_network_frequency": "target_every",
    "exploration_fraction": "exploration",
    "exploration_final_eps": "epsilon_end",
    "end_e": "epsilon_end",
    "start_e": "epsilon_start",
    "total_timesteps": "total_steps",
    "timesteps": "total_steps",
    "net_arch": "hidden",
    "env_id": "env",
    "gym_id": "env",
    "num_workers": "workers",
    "num_env_runners": "workers",
}
"""Keys by the names of other libraries: of Stable-Baselines3, CleanRL and RLlib."""


def meant(name: str, known: Iterable[str]) -> list[str]:
    """Returns the keys among `known` that another library calls by this name."""
    ours = _KEYS.get(name.replace("-", "_").lower(), "").split()
    return [key for key in known if key.replace("-", "_") in ours]
