"""Makes environments from their names.

A name is an id of gymnasium or gym ("CartPole-v1": gymnasium's if it has it; "gym:CartPole-v1"),
"graph:CartPole-v1" (MindSpore operators), "probe:bandit" (a known optimum),
"pettingzoo:mpe2.simple_spread_v3" (a module with PettingZoo's interface), "atari:Pong-v5" (an
Atari game with DQN's images), "envpool:Pong-v5" (EnvPool's C++), or "path/to/file.py:Name" (the
user's own: a class, or a function that makes a gym.Env or a gymnasium.Env). Options follow the
name: "pettingzoo:mpe2.simple_spread_v3,N=8".
"""

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

from mindspore_rl.environments.environment import (
    GRAPH_OPTIONS,
    GRAPH_SPECS,
    EnvironmentSpec,
    GraphEnvironment,
    VectorEnvironment,
    graph_spec,
    unknown,
)
from mindspore_rl.environments.gym import library
from mindspore_rl.environments.options import MASK, mask_option, split_options, with_options
from mindspore_rl.environments.sync_vector import RAISED, closed
from mindspore_rl.errors import (
    EnvironmentFailure,
    MissingPackageError,
    UnknownEnvironmentError,
    described,
)
from mindspore_rl.platform.user_modules import load_module, package_of, same_folder


class InGraph(NamedTuple):
    """An environment in MindSpore's operators: Python counterpart, if any, module and class."""

    python: str | None
    module: str
    cls: str


IN_GRAPH = {
    "graph:CartPole-v1": InGraph("CartPole-v1", "classic", "GraphCartPole"),
    "graph:Pendulum-v1": InGraph("Pendulum-v1", "classic", "GraphPendulum"),
    "graph:simple_spread_v3": InGraph(
        "pettingzoo:mpe2.simple_spread_v3", "particle", "GraphSimpleSpread"
    ),
    "graph:simple_tag_v3": InGraph("pettingzoo:mpe2.simple_tag_v3", "particle", "GraphSimpleTag"),
    "graph:TicTacToe-v0": InGraph(None, "board_games", "GraphTicTacToe"),
    "graph:ConnectFour-v0": InGraph(None, "board_games", "GraphConnectFour"),
}


def graph_names() -> list[str]:
    """Returns the names of the in-graph environments of the package."""
    return list(GRAPH_SPECS)


def python_name(graph_name: str) -> str | None:
    """Returns the Python counterpart of one of `graph_names()`, if any."""
    found = IN_GRAPH.get(split_options(graph_name)[0])
    return with_options(found.python, graph_name) if found and found.python else None


def graph_name(name: str) -> str | None:
    """Returns the in-graph counterpart of the Python environment `name`, if any."""
    base, options = split_options(name)
    for graph, found in IN_GRAPH.items():
        if found.python == base and set(options) <= set(GRAPH_OPTIONS.get(graph, {})):
            return with_options(graph, name)
    return None


def names() -> list[str]:
    """Returns all known names; some need packages that may not be installed."""
    from mindspore_rl.environments import probe  # noqa: PLC0415

    pythons = (found.python for found in IN_GRAPH.values() if found.python)
    pettingzoo = [name for name in pythons if name.startswith("pettingzoo:")]
    return [*GRAPH_SPECS, *probe.PROBES, *pettingzoo, *library.ids()]


def sorted_names(part: str = "") -> tuple[list[str], dict[str, list[str]]]:
    """Builds each known environment once, to see which work here.

    Args:
        part: of the name, in any case.

    Returns:
        The names that are accepted here; and by extra of this project, the names that it would
        add.
    """
    accepted: list[str] = []
    missing: dict[str, list[str]] = {}
    for name in [*names(), "atari:Pong-v5", "envpool:CartPole-v1"]:  # for all of Atari, EnvPool
        if part.lower() not in name.lower():
            continue
        try:
            spec(name)
        except MissingPackageError as error:
            if error.extra and name not in missing.setdefault(error.extra, []):
                missing[error.extra].append(name)
        except (EnvironmentFailure, UnknownEnvironmentError):
            continue  # for example those for an older MuJoCo
        else:
            accepted.append(name)
    return list(dict.fromkeys(accepted)), missing


_KNOWN: ContextVar[dict[str, EnvironmentSpec] | None] = ContextVar("known", default=None)


@contextlib.contextmanager
def built_once() -> Iterator[None]:
    """Context: an environment is built once for all calls of `spec` and `warning`.

    It is for one command: a file that an environment reads may change between two.
    """
    known = _KNOWN.get()
    before = _KNOWN.set({} if known is None else known)
    try:
        yield
    finally:
        _KNOWN.reset(before)


def spec(name: str) -> EnvironmentSpec:
    """Returns the spec of an environment, which may build one; see `built_once`.

    Raises:
        UnknownEnvironmentError: no environment has this name, or it has no such action mask.
        EnvironmentFailure: it cannot be built here.
    """
    known = _KNOWN.get()
    if known is None:
        return _checked(name)
    if name not in known:
        known[name] = _checked(name, watched=True)
    return known[name]


def _checked(name: str, watched: bool = False) -> EnvironmentSpec:
    with same_folder():
        found, wanted = _spec(name, watched), mask_option(name)
    if wanted is not None and wanted != found.action_mask:
        has = "an action mask that it always gives" if found.action_mask else "no action mask"
        raise UnknownEnvironmentError(f"{name!r} has {has}: leave out {MASK}={wanted}".lower())
    return found


def _spec(name: str, watched: bool) -> EnvironmentSpec:
    base, options = split_options(name)
    if base in GRAPH_SPECS:
        return graph_spec(name)
    if _is_file(name):
        built = _load_own(name)
        if _is_graph_class(built):
            return _of_user(name, built).spec
        if _is_parallel(built):
            return _pettingzoo().pettingzoo_spec(name, functools.partial(built, **options))
        if _is_single(built):
            return _gym_vector().gym_spec(name, functools.partial(built, **options), watched)
        env = _of_user(name, built, range(1), 0)
        closed(name, env.close)
        return env.spec
    if name.startswith("probe:"):
        return _probe(name).spec
    if name.startswith("graph:"):
        raise unknown(name, graph_names())
    if name.startswith("pettingzoo:"):
        return _pettingzoo().pettingzoo_spec(name)
    if name.startswith("envpool:"):
        from mindspore_rl.environments import envpool  # noqa: PLC0415

        return envpool.pool_spec(name)
    return _gym_vector().gym_spec(name)


def warning(name: str) -> str:
    """Returns the warning of an environment's spec, and of one of the user's own what a step tells.

    Raises: see `spec`.
    """
    with built_once():
        return spec(name).warning


def make_vector(name: str, env_indices: range, seed: int) -> VectorEnvironment:
    """Builds a share of a run's environments.

    Args:
        name: the name of a Python environment, see the module's docstring.
        env_indices: the global indices of the environments to build.
        seed: the run's seed, at least 0.

    Raises:
        UnknownEnvironmentError: no Python environment has this name.
        EnvironmentFailure: it cannot be built here.
    """
    base, options = split_options(name)
    if base in GRAPH_SPECS:
        raise UnknownEnvironmentError(
            f"{name!r} is an in-graph environment, expected a Python one: leave out 'graph:'"
        )
    if _is_file(name):
        built = _load_own(name)
        if _is_graph_class(built):
            raise UnknownEnvironmentError(
                f"{name!r} is an in-graph environment (it has noise_size and "
                "step(state, action, noise)), expected a Python one"
            )
        maker = functools.partial(built, **options)
        if _is_parallel(built):
            return _pettingzoo().PettingZooVector(name, env_indices, seed, maker)
        if _is_single(built):
            return _gym_vector().GymVector(name, env_indices, seed, maker)
        return _of_user(name, built, env_indices, seed)
    if name.startswith("probe:"):
        return _probe(name)(env_indices, seed)
    if name.startswith("graph:"):
        raise unknown(name, graph_names())
    if name.startswith("pettingzoo:"):
        return _pettingzoo().PettingZooVector(name, env_indices, seed)
    if name.startswith("envpool:"):
        from mindspore_rl.environments import envpool  # noqa: PLC0415

        return envpool.PoolVector(name, env_indices, seed)
    return _gym_vector().GymVector(name, env_indices, seed)


def make_single(name: str) -> Any:
    """Builds one environment of gym's or gymnasium's; see `gym_vector.make_single`.

    Raises:
        UnknownEnvironmentError: no environment has this name, or it is of another kind.
        EnvironmentFailure: it cannot be built here.
    """
    name = python_name(name) or name
    if maker := _own_single(name):
        return _gym_vector().make_single(name, maker)
    if not _is_file(name) and not name.startswith(("probe:", "pettingzoo:", "envpool:", "graph:")):
        return _gym_vector().make_single(name)
    raise UnknownEnvironmentError(f"{name!r} is neither of gym nor of gymnasium, expected such")


def make_graph(name: str) -> GraphEnvironment:
    """Builds an in-graph environment; imports MindSpore.

    Raises:
        UnknownEnvironmentError: no in-graph environment has this name.
    """
    if _is_file(name):
        built = _load_own(name)
        if not _is_graph_class(built):
            raise UnknownEnvironmentError(
                f"{name!r} is a Python environment, expected an in-graph one: a class with a "
                "class attribute noise_size and step(self, state, action, noise)"
            )
        return _accelerated(_of_user(name, built))
    base, options = split_options(name)
    if base not in GRAPH_SPECS:
        raise unknown(name, graph_names(), "in-graph environment")
    graph_spec(name)
    found = IN_GRAPH[base]  # MindSpore: 1.2 s, 450 MB
    module = importlib.import_module(f"mindspore_rl.environments.in_graph.{found.module}")
    return _accelerated(getattr(module, found.cls)(**options))


def _accelerated(environment: Any) -> Any:
    from mindspore_rl.environments.in_graph import native_step  # noqa: PLC0415  (imports MindSpore)

    return native_step.accelerated(environment)


def _of_user(name: str, built: Any, *arguments: Any) -> Any:
    try:
        environment = built(*arguments, **split_options(name)[1])
    except EnvironmentFailure:
        raise
    except RAISED as error:  # the user's own code
        hint = ""
        if arguments and not isinstance(getattr(built, "spec", None), EnvironmentSpec):
            hint = (
                "; it is no gymnasium.Env, gym.Env or ParallelEnv of PettingZoo, and so is called "
                "with env_indices and seed, to make a batch of environments with a spec: inherit "
                "from one of these (an AECEnv: name a function parallel_env that returns "
                "aec_to_parallel(...); a VectorEnv: name one of its environments)"
            )
        text = f"{name} could not be made: {described(error)}{hint}"
        raise EnvironmentFailure(text) from error
    of_python = ("get_state", "close") if arguments else ()
    missing = [part for part in ("reset", "step", *of_python) if not hasattr(environment, part)]
    if missing:
        raise EnvironmentFailure(f"{name} has no {', '.join(missing)}, expected such methods")
    if not isinstance(getattr(environment, "spec", None), EnvironmentSpec):
        raise EnvironmentFailure(
            f"{name}: its spec is {getattr(environment, 'spec', None)!r}, expected an "
            "EnvironmentSpec of mindspore_rl.environments.environment"
        )
    return environment


def _probe(name: str) -> Any:
    from mindspore_rl.environments import probe  # noqa: PLC0415

    if name not in probe.PROBES:
        raise unknown(name, list(probe.PROBES))
    return probe.PROBES[name]


def _is_file(name: str) -> bool:
    return ".py:" in name


def _own_single(name: str) -> Callable[[], Any] | None:
    """Returns what makes one environment, if the name is of the user's own of gym or gymnasium."""
    built = _load_own(name) if _is_file(name) else None
    if built is None or _is_graph_class(built) or not _is_single(built):
        return None
    return functools.partial(built, **split_options(name)[1])


def _is_graph_class(built: Any) -> bool:
    step = getattr(built, "step", None)
    if not hasattr(built, "noise_size") or step is None:
        return False
    return list(inspect.signature(step).parameters)[1:] == ["state", "action", "noise"]


def _is_single(built: Any) -> bool:
    """Returns whether it makes one environment: a class of gym or gymnasium, or a function."""
    if _is_parallel(built):
        return False
    return not inspect.isclass(built) or library.library_of(built) is not None


def _is_parallel(built: Any) -> bool:
    """Returns whether it makes a parallel environment: PettingZoo's class, or `parallel_env`."""
    if not inspect.isclass(built):
        return getattr(built, "__name__", "") == "parallel_env"
    names = [(base.__module__.split(".")[0], base.__name__) for base in built.__mro__]
    return ("pettingzoo", "ParallelEnv") in names


def _pettingzoo() -> Any:
    from mindspore_rl.environments import pettingzoo  # noqa: PLC0415

    return pettingzoo


def _gym_vector() -> Any:
    from mindspore_rl.environments.gym import vector  # noqa: PLC0415

    return vector


def _load_own(name: str) -> Any:
    """Imports the class or function that "path/to/file.py:Name" names, once per process."""
    path_text, own_name = split_options(name)[0].rsplit(":", 1)
    path = Path(path_text).resolve()
    if not path.is_file():
        raise UnknownEnvironmentError(f"there is no file {path} (from the environment {name!r})")
    library.silence_gym()
    # Separate from an algorithm in the same folder, of which a run may have a copy.
    module = load_module(path, package_of(path, "environment"), EnvironmentFailure)
    built = getattr(module, own_name, None)
    if not callable(built):
        known = [
            key
            for key, value in vars(module).items()
            if inspect.isclass(value) or inspect.isfunction(value)
            if value.__module__ == module.__name__ and not key.startswith("_")
        ]
        raise UnknownEnvironmentError(
            f"{path} has no class or function {own_name!r}; it has {', '.join(known) or 'none'}"
        )
    return built
