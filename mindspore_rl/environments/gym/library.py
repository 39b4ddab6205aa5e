"""Finds and makes environments of gymnasium and gym, and names missing packages.

"gymnasium:ID" and "gym:ID" name the library; a plain id is gymnasium's if gymnasium has it;
"atari:ID" is a game of gymnasium's with DQN's images. gym is imported only when it is needed: for
"gym:ID", for an id that gymnasium does not have, and for a user's environment that is made from
gym.
"""

import contextlib
import importlib
import importlib.util
import pickle
import random
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from mindspore_rl.environments import images
from mindspore_rl.environments.environment import EnvironmentSpec, unknown
from mindspore_rl.environments.gym import atari, goals
from mindspore_rl.environments.layout import Layout
from mindspore_rl.environments.options import MASK, split_options
from mindspore_rl.environments.spaces import clauses, digits_lost
from mindspore_rl.environments.sync_vector import RAISED, as_space, layers
from mindspore_rl.errors import (
    EnvironmentFailure,
    MissingPackageError,
    UnknownEnvironmentError,
    described,
    install,
    text_of,
)

LIBRARIES = ("gymnasium", "gym")
"""The libraries, in the order in which a plain id is looked up."""
_MOVED = "gymnasium-robotics"  # of MuJoCo's v2 and v3 gymnasium has the ids, which say this


def load(library: str) -> Any:
    """Imports gymnasium or gym, without its advice.

    Raises:
        MissingPackageError: it is not installed.
    """
    silence_gym()  # a module that registers ids may import gym
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module(library)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise MissingPackageError(f"{library} is not installed; {install()}") from error
    if library == "gym":
        module.logger.set_level(module.logger.ERROR)
    return module


def silence_gym() -> None:
    """Stops gym from printing its advice to upgrade; its errors are still printed."""
    with contextlib.suppress(ImportError):
        importlib.import_module("gym_notices.notices").notices.clear()


def library_of(kind: type) -> str | None:
    """Returns the name of the library whose `Env` a class inherits from, or None."""
    for base in kind.__mro__:
        library = base.__module__.partition(".")[0]
        if library in LIBRARIES and base.__name__ == "Env":
            return library
    return None


def ids() -> list[str]:
    """Returns the ids in both registries; gym's have a prefix if gymnasium has the plain id."""
    plain, others = map(registry, LIBRARIES)
    return plain + [f"gym:{name}" if name in plain else name for name in others]


def registry(library: str) -> list[str]:
    """Returns the ids that a library has registered."""
    return list(load(library).envs.registration.registry)


def make(name: str) -> Any:
    """Makes an environment from its id.

    Raises:
        UnknownEnvironmentError: neither library knows the id.
        EnvironmentFailure: it cannot be made here.
    """
    if "," in (base := split_options(name)[0]):
        raise UnknownEnvironmentError(
            f"{name!r}: what an environment is made with stands behind its name as KEY=VALUE, for "
            f"example {base.partition(',')[0]},render_mode=rgb_array"
        )
    if base.endswith(".py"):
        raise unknown(base, [])
    prefix, _, rest = name.partition(":")
    asked, own_id = ((prefix,), rest) if prefix in LIBRARIES else (LIBRARIES, name)
    game = name.startswith(atari.PREFIX)
    if game:
        asked = LIBRARIES[:1]
    for library in asked:
        module = load(library)
        try:
            return _make_in(module, library, own_id, game)
        except (module.error.UnregisteredEnv, module.error.DeprecatedEnv):
            continue
        except EnvironmentFailure as failure:
            if library == asked[-1] or _MOVED not in str(failure):
                raise
    if game:
        games = (known for known in registry(asked[0]) if known.startswith("ALE/"))
        raise unknown(name, [known.replace("ALE/", atari.PREFIX) for known in games])
    if len(asked) == 1:
        raise unknown(name, [f"{prefix}:{known}" for known in registry(prefix)])
    raise unknown(name, ids())


def _make_in(module: Any, library: str, name: str, game: bool) -> Any:
    if game or (library == "gymnasium" and name.startswith("ALE/")):
        atari.register(module, name)
    try:
        with warnings.catch_warnings(), _without_mujoco_advice(module, name):
            warnings.simplefilter("ignore")
            base, options = split_options(name)
            if game:
                return atari.make(module, base.removeprefix(atari.PREFIX), options)
            _register(module, base)
            return module.make(base, disable_env_checker=True, **options)
    except (module.error.UnregisteredEnv, module.error.DeprecatedEnv):
        raise
    except (module.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise _missing(name, error) from error
    except RAISED as error:  # the environment's own code
        text = f"{library} could not make {name!r}: {described(error)}"
        raise EnvironmentFailure(text) from error


def _register(module: Any, name: str) -> None:
    """Calls the `register_envs()` of "package:ID", if importing the package registers nothing."""
    package, colon, own_id = name.partition(":")
    if colon:
        register = getattr(importlib.import_module(package), "register_envs", None)
        if register is not None and own_id not in module.envs.registration.registry:
            register()


@contextlib.contextmanager
def _without_mujoco_advice(module: Any, name: str) -> Iterator[None]:
    """Stops MuJoCo from printing, and logging to a file, that a library's models are old."""
    found = module.envs.registration.registry.get(split_options(name)[0])
    own = f"{module.__name__}.envs.mujoco"
    entry = str(getattr(found, "entry_point", None))
    if not entry.startswith(own) or importlib.util.find_spec("mujoco") is None:
        yield
        return
    import mujoco  # noqa: PLC0415 (optional)

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _missing(name: str, error: Exception) -> EnvironmentFailure:
    # The libraries' texts: "No module named 'mujoco'", "box2D is not installed, run ...".
    text = text_of(error).lower()
    if "mujoco_py" in text:
        return EnvironmentFailure(
            f"{name!r} needs mujoco_py, which is no longer maintained: use its version v4 or v5"
        )
    for word, package, extra in (
        ("mujoco", "MuJoCo", "mujoco"),
        ("imageio", "imageio", "mujoco"),
        ("box2d", "Box2D", "box2d"),
    ):
        if word in text:
            return MissingPackageError(
                f"{name!r} needs {package}, which is not installed; {install(extra)}", extra
            )
    own, colon, _ = split_options(name)[0].partition(":")
    if colon and importlib.util.find_spec(own.partition(".")[0]) is None:
        return MissingPackageError(
            f"{name!r}: there is no module {own}, which is looked for where Python's packages are "
            "and in PYTHONPATH, and not in the working folder: add its folder to PYTHONPATH, or "
            f"name a file, as in '{own.replace('.', '/')}.py:ClassName'"
        )
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return MissingPackageError(
            f"{name!r} needs the package {package}, which is not installed: add it with pip"
        )
    return MissingPackageError(f"{name!r} needs a package that is not installed: {error}")


def spec_of(name: str, env: Any, layout: str, space: Any) -> EnvironmentSpec:
    """Makes the spec of an environment."""
    library = str(library_of(type(env)))
    own, masked = Layout.of(space), hasattr(env, "action_mask_of")
    action_space = as_space(env.action_space)
    assert action_space is not None
    return EnvironmentSpec(
        name=name,
        obs_shape=tuple(int(size) for size in env.observation_space.shape),
        layout=own.without(MASK) if own is not None and masked else own,
        action_space=action_space,
        max_episode_steps=_limit(env),
        reward_threshold=getattr(env.spec, "reward_threshold", None),
        in_graph=False,
        notes=clauses(f"of {library} {load(library).__version__}", layout),
        obs_dtype="uint8" if images.is_image(env.observation_space) else "float32",
        warning=clauses(_own_statistics(env), digits_lost(space)),
        library=library,
        action_mask=masked,
        goal=goals.goal_of(env),
    )


def _own_statistics(env: Any) -> str:
    """Warns of wrappers that scale by running statistics, such as `NormalizeObservation`."""
    module, found = load(str(library_of(type(env)))), []
    for layer in layers(module, env):
        parts = {type(part).__name__ for part in vars(layer).values()}
        # gymnasium's can be told not to update them.
        if "RunningMeanStd" in parts and getattr(layer, "update_running_mean", True):
            found.append(type(layer).__name__)
    if not found:
        return ""
    return (
        f"{' and '.join(found)}: running statistics of its own, in each environment others and in "
        "no checkpoint: evaluation, policies and a resumed run begin them anew and do not see what "
        "was trained on; leave it out, and normalise in the algorithm (ppo: normalise_obs=true, "
        "normalise_reward=true) or scale by constants"
    )


def draws_from_shared(env: Any) -> str:
    """Warns of an environment whose first step or its reset draws from a shared generator."""

    def drawn() -> tuple[Any, ...]:
        _, keys, place, *_ = np.random.get_state()
        return random.getstate(), np.asarray(keys).tobytes(), place

    own = [one for one in _held_by_classes(env) if type(one) in _GENERATORS]
    before, own_before = drawn(), [pickle.dumps(one) for one in own]
    with contextlib.suppress(*RAISED):  # a run tells it with the environment's number
        env.reset(seed=0)
        env.step(env.action_space.sample())
    where = "`random` or `np.random`"
    if drawn() == before:
        if [pickle.dumps(one) for one in own] == own_before:
            return ""
        where = "a generator of its class or file"
    return (
        f"it draws from {where}, which the environments of a rank share: with "
        "another number of workers, and resumed, its episodes are others; draw "
        "from self.np_random, which super().reset(seed=seed) seeds"
    )


_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)


def _held_by_classes(env: Any) -> Iterator[Any]:
    """Returns what the classes of an environment and their files hold."""
    for kind in type(env.unwrapped).__mro__:
        yield from vars(kind).values()
        yield from vars(sys.modules.get(kind.__module__, object)).values()


def _limit(env: Any) -> int:
    """Returns the limit of the outermost wrapper that has one; the spec's may not apply."""
    module = load(str(library_of(type(env))))
    for layer in layers(module, env):
        if isinstance(layer, module.wrappers.TimeLimit):
            return int(layer._max_episode_steps)
    return 0


def is_plain(env: Any) -> bool:
    """Returns whether it has only the library's own wrappers, which do not change steps."""
    *wrappers, _ = layers(load(str(library_of(type(env)))), env)
    names = ("OrderEnforcing", "TimeLimit", "PassiveEnvChecker")
    return all(_is_own(one) and type(one).__name__ in names for one in wrappers)


def is_atari(env: Any) -> bool:
    """Returns whether it is one of ale-py's games, with any wrappers."""
    return type(env.unwrapped).__module__.startswith("ale_py.")


def has_own_wrappers(env: Any) -> bool:
    """Returns whether it has none but the library's own wrappers."""
    *wrappers, _ = layers(load(str(library_of(type(env)))), env)
    return all(map(_is_own, wrappers))


def _is_own(wrapper: Any) -> bool:
    return type(wrapper).__module__.startswith(("gymnasium.wrappers.", "gym.wrappers."))


def declared(name: str, env: Any) -> int:
    """Returns the number of threads that may step environments, by their `metadata`.

    A step that computes without Python's lock still takes and returns it, which can cost more than
    the other cores gain: on two cores, a step of eight HalfCheetahs took 0.39 ms on one thread and
    0.65 ms on two. The results of a step do not depend on the choice.

    Returns: 0: one; 1: as many as the rank has cores if that is faster; n: at least n.
    """
    found = (getattr(env, "metadata", None) or {}).get("concurrent", False)
    if not isinstance(found, (bool, int)) or found < 0:
        raise EnvironmentFailure(
            f"environment {name!r} has metadata['concurrent'] = {found!r}, expected True (stepped "
            "on as many threads as the rank has cores, if that is faster) or a number of threads "
            "at least"
        )
    return int(found)
