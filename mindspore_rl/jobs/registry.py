"""Finds algorithms, policies, deployments and configurations by name or by path.

In a checkout, the folders are next to the package; in an installed wheel, inside it.
"""

import difflib
from pathlib import Path

from mindspore_rl.environments.registry import python_name
from mindspore_rl.errors import ConfigError, MsrlError, PolicyError
from mindspore_rl.platform.user_modules import load_module
from mindspore_rl.platform.yaml_files import YamlKeys, read_yaml
from mindspore_rl.policy import DistributionPolicy

TUNED = "tuned"
"""Folder, in that of the configurations, with the values of each task: a file an algorithm."""


def folder(name: str) -> Path:
    """Returns the folder `algorithms` or `distribution`."""
    package = Path(__file__).resolve().parents[1]
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


def algorithms() -> list[str]:
    """Lists the names of the project's algorithms."""
    return sorted(f.stem for f in folder("algorithms").glob("*.py") if f.stem != "__init__")


def policies() -> dict[str, Path]:
    """Returns the files of the project's policies, by name."""
    files = [f for f in sorted(folder("distribution").glob("*.py")) if f.stem != "__init__"]
    return {load_policy(f).name: f for f in files}


def load_policy(file: Path) -> DistributionPolicy:
    """Loads the policy that a file defines as `POLICY`.

    Raises:
        MsrlError: there is none, or it has another type.
    """
    policy = getattr(load_module(file), "POLICY", None)
    if not isinstance(policy, DistributionPolicy):
        raise MsrlError(
            f"{file}: POLICY is {type(policy).__name__}, expected a "
            "mindspore_rl.policy.DistributionPolicy"
        )
    return policy


def find_algorithm(name: str) -> Path:
    """Finds the file of an algorithm, given its name or path.

    Raises:
        MsrlError: there is none; the message suggests the nearest names.
    """
    if name in algorithms():
        return folder("algorithms") / f"{name}.py"
    return _path(name, "algorithm", algorithms(), MsrlError)


def find_policy(name: str) -> Path:
    """Finds the file of a policy, given its path, or its name in any spelling.

    Raises:
        PolicyError: there is none; the message suggests the nearest names.
    """
    if name == "auto":
        raise PolicyError(
            "policy auto is chosen by msrl train and msrl graph alone; here, name one of "
            f"{', '.join(policies())}"
        )
    known = policies()
    for policy, file in known.items():
        if _plain(policy) == _plain(name):
            return file
    return _path(name, "policy", list(known), PolicyError)


def find_deployment(name: str) -> Path:
    """Finds the file of a deployment, given its name or path.

    Raises:
        ConfigError: there is none; the message suggests the nearest names.
    """
    return _yaml(name, "deployment", "deployments")


def find_device(name: str) -> Path:
    """Finds the file of a device's description, given its name or path; see `find_deployment`."""
    return _yaml(name, "description of devices", "devices")


def _yaml(name: str, kind: str, place: str) -> Path:
    known = {f.stem: f for f in sorted(folder("distribution").glob(f"{place}/*.yaml"))}
    return known.get(name) or _path(name, kind, list(known), ConfigError, ".yaml")


def find_config(name: str) -> Path:
    """Finds a YAML file, given its path, or its name among the project's configurations.

    Raises:
        ConfigError: there is none; the message suggests the nearest names.
    """
    if Path(name).exists():
        return Path(name)
    known = {f.stem: f for f in sorted((folder("algorithms") / "configs").glob("*.yaml"))}
    return known.get(name) or _path(name, "configuration", list(known), ConfigError, ".yaml")


def tuned(algorithm: str, env: str) -> YamlKeys | None:
    """Returns the values that the project has for an algorithm of its own on a task, if any.

    Args:
        algorithm: its name.
        env: the id of an environment, also as `gymnasium:ID` or `graph:ID`, without options.
    """
    file = folder("algorithms") / "configs" / TUNED / f"{algorithm}.yaml"
    if algorithm not in algorithms() or not file.is_file():
        return None
    task = (python_name(env) or env).removeprefix("gymnasium:")
    found = read_yaml(file).get(task)
    return YamlKeys(file, found) if isinstance(found, dict) else None


def name_of(file: Path) -> str:
    """Returns the key to store for a file: its name if it is the project's, else its path.

    The name stays valid when the project is moved.
    """
    if file.parent == folder("algorithms"):
        return file.stem
    return {known: name for name, known in policies().items()}.get(file, str(file))


def file_of(name: str) -> Path:
    """Returns the file for a key that `name_of` returned; it may no longer exist."""
    if name.endswith(".py"):
        return Path(name)
    return policies().get(name, folder("algorithms") / f"{name}.py")


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _path(
    name: str, kind: str, known: list[str], error: type[MsrlError], suffix: str = ".py"
) -> Path:
    path = Path(name)
    if path.suffix == suffix:
        if path.is_file():
            return path.resolve()
        raise error(f"{kind} {name}: no such file (from {Path.cwd()})")
    plain = {_plain(k): k for k in known}
    near = [plain[n] for n in difflib.get_close_matches(_plain(name), plain, n=3, cutoff=0.4)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}"
    raise error(f"unknown {kind} {name!r}: {hint} (or give the path of a {suffix} file)")
