"""Checks whether a job can resume from a checkpoint, and where its counts go on."""

from pathlib import Path
from typing import Any

from mindspore_rl.errors import CheckpointError
from mindspore_rl.plan.plan import STATE, Plan
from mindspore_rl.platform.user_modules import as_recorded
from mindspore_rl.runtime.checkpoint import replays_of

WITHOUT_MASK = "action_mask=false"
NO_MASK_THEN = "is of an earlier version, which took no action mask: leave it out, by --env"
MAX_NAMED = 3
"""Arrays that an error message names."""


ABOUT = {"algorithm": str, "environment": str, "config": dict}
"""Fields of a checkpoint's metadata that describe its job, other than numbers."""


def check_job(path: Path, meta: dict[str, Any], plan: Plan) -> None:
    """Checks that a job can resume from a checkpoint, as far as is known without its ranks.

    Raises:
        CheckpointError: the checkpoint is of another job; the message lists all differences.
    """
    if lacking := [key for key, kind in ABOUT.items() if not isinstance(meta.get(key), kind)]:
        raise CheckpointError(
            f"checkpoint {path} does not say of which {', '.join(lacking)} it is, so that nothing "
            "can go on from it; use one that `msrl train` wrote"
        )
    then = meta["environment"]
    recorded = as_recorded(meta)
    unmasked = f"{recorded},{WITHOUT_MASK}" if "action_mask" not in meta else recorded
    if plan.environment in (recorded, unmasked):
        then = plan.environment
    environments = [_without_folder(name) for name in (then, plan.environment)]
    told = [
        ("algorithm", meta["algorithm"], plan.algorithm["name"]),
        ("environment", *environments),
    ]
    if plan.layout is not None and plan.layout.ordered and "layout" in meta:
        told.append(("layout of observations", meta["layout"], str(plan.layout)))
    if replays_of(meta):
        told.append(("num_envs, by which the replay is laid out,", meta["num_envs"], plan.num_envs))
        if why := _why_replay_would_not_fit(meta, plan):
            told.append((f"num_steps, which {why},", *sizes(meta, plan)["num_steps"]))
    differ = [(what, then, now) for what, then, now in told if then != now]
    arrays = [] if differ else _other_arrays(meta, plan)  # else they follow from it
    if arrays and plan.action_mask and "action_mask" not in meta:
        raise CheckpointError(f"checkpoint {path} {NO_MASK_THEN} {recorded},{WITHOUT_MASK}")
    steps = meta["steps_per_iteration"]
    resized = any(then != now for then, now in sizes(meta, plan).values())
    if not differ and (arrays or (steps != plan.steps_per_iteration and not resized)):
        differ = [
            (key, meta["config"].get(key), now)
            for key, now in plan.config.items()
            if meta["config"].get(key) != now and key not in ("env", "total_steps")
        ]
        if not arrays and not differ:
            differ = [("steps_per_iteration", steps, plan.steps_per_iteration)]
    if differ or arrays:
        named = "; ".join(f"{what} is {then} in it and {now} here" for what, then, now in differ)
        text = f"checkpoint {path} is of another job: {named or 'its arrays are others'}; a run "
        text += "goes on only as what it was: undo that, or start a new one without --resume"
        more = len(arrays) - MAX_NAMED
        last = [f"{more} more arrays"] if more > 0 else []
        raise CheckpointError("\n  ".join([text, *arrays[:MAX_NAMED], *last]))


def sizes(meta: dict[str, Any], plan: Plan) -> dict[str, tuple[Any, Any]]:
    """Returns the sizes that may change on resume: the old and the new value by key."""
    then = {**meta["config"], "num_envs": meta["num_envs"]}
    now = {**plan.config, "num_envs": plan.num_envs}
    return {key: (then.get(key), now.get(key)) for key in ("num_envs", "num_steps")}


def counted_from(meta: dict[str, Any], plan: Plan) -> tuple[int, int]:
    """Returns the iterations and environment steps at which a resumed job starts to count.

    If the size of an iteration has changed: the whole iterations of the new size.
    """
    if meta["steps_per_iteration"] == plan.steps_per_iteration:
        return meta["iteration"], meta["env_steps"]
    iteration = meta["env_steps"] // plan.steps_per_iteration
    return iteration, iteration * plan.steps_per_iteration


def _why_replay_would_not_fit(meta: dict[str, Any], plan: Plan) -> str:
    """Explains why the replay does not fit another number of steps; empty if it fits.

    The row of the next record in the replay follows from the number of iterations done.
    """
    if meta["steps_per_iteration"] == plan.steps_per_iteration:
        return ""
    if "counters/iterations" in meta["arrays"]:
        return "asynchronous workers count their replay in"
    steps = meta["env_steps"] // meta["num_envs"]
    return f"has to divide the {steps:,} steps in the replay" if steps % plan.steps_per_env else ""


def _other_arrays(meta: dict[str, Any], plan: Plan) -> list[str]:
    """Describes the parameters and carried values whose shapes differ from the job's."""
    shapes = {f"parameters/{name}": shape for name, shape in plan.parameters.items()}
    shapes |= {f"variables/{name}": value.shape for name, value in plan.carried.items()}
    shapes.pop(f"variables/{STATE}", None)  # only the environment knows its shape
    kinds = ("parameters/", "variables/")
    saved = {name: tuple(entry[1]) for name, entry in meta["arrays"].items()}
    saved = {name: shape for name, shape in saved.items() if name.startswith(kinds)}
    for name, value in plan.carried.items():  # a new number of environments resets theirs
        key, axis = f"variables/{name}", value.axis
        if axis is not None and key in saved and meta["num_envs"] != plan.num_envs:
            saved[key] = (*saved[key][:axis], value.shape[axis], *saved[key][axis + 1 :])
    return [
        f"{name} has {_shape(saved.get(name))} in it and {_shape(shapes.get(name))} here"
        for name in dict.fromkeys([*shapes, *saved])
        if saved.get(name) != shapes.get(name)
    ]


def _without_folder(environment: str) -> str:
    """Returns an environment's name without the folder of a user's file, which may have moved."""
    return environment.rpartition("/")[2] if ".py:" in environment else environment


def _shape(shape: tuple[int, ...] | None) -> str:
    return "no array" if shape is None else f"shape {shape}"
