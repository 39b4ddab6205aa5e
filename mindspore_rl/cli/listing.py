"""`msrl list`: algorithms, with what each of them learns from."""

import argparse
import ast
import dataclasses
import inspect
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindspore_rl import programs
from mindspore_rl.cli.parser import add_command
from mindspore_rl.environments.environment import EnvironmentSpec, Team
from mindspore_rl.jobs import registry
from mindspore_rl.jobs.suitable import BOX, DISCRETE, made, needs_data
from mindspore_rl.platform.yaml_files import read_yaml

PROBE = EnvironmentSpec("an environment", (4,), DISCRETE, 10, None, in_graph=False)
TEAM: dict[str, Any] = {"obs_shape": (2, 4), "teams": (Team("agents", 2),)}
PIXELS = dataclasses.replace(PROBE, obs_shape=(4, 84, 84), obs_dtype="uint8")


def add(subparsers: Any) -> None:
    """Adds the command `msrl list`."""
    text = "list algorithms: what they need, and one line about each"
    parser = add_command(subparsers, "list", run, text)
    parser.add_argument(
        "files",
        type=Path,
        nargs="*",
        metavar="PATH",
        help="files of algorithms, or folders of such files; they are run (default: the built-in "
        "algorithms and configurations)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array")


def run(args: argparse.Namespace) -> int:
    """Runs `msrl list`."""
    files = args.files or [registry.folder("algorithms")]
    rows = [describe(cls, file) for path in files for file, cls in _trainers(path)]
    if not args.files:
        rows += configurations()
    if args.json:
        print(json.dumps(rows))
        return 0
    cells = [(row["name"], _needs_text(row), row["about"]) for row in rows]
    widths = [max((len(cell[i]) for cell in cells), default=0) for i in range(2)]
    for name, needs, about in cells:
        print(f"{name:{widths[0]}}  {needs:{widths[1]}}  {about}")
    keys = {key: need for row in rows for need, key in row.get("options", {}).items()}
    if keys:
        print("\nin brackets:", ", ".join(f"{need} with {key}" for key, need in keys.items()))
    return 0


def _needs_text(row: dict[str, Any]) -> str:
    """Returns what an algorithm needs, options in brackets; or whose configuration it is."""
    if "algorithm" in row:
        return f"configuration of {row['algorithm']}"
    masks = ["action masks"] if row["action_masks"] else []
    return ", ".join([*row["needs"], *(f"({need})" for need in row["options"]), *masks])


def _trainers(path: Path) -> Iterator[tuple[Path, Any]]:
    """Yields the algorithms of a file, or of the files in a folder that define a `Trainer`."""
    if not path.is_dir():
        files = [registry.find_algorithm(str(path))]
    else:
        files = [file for file in sorted(path.glob("*.py")) if _defines_trainer(file)]
    for file in files:
        yield file, programs.trainer_class(file)


def _defines_trainer(file: Path) -> bool:
    """Returns whether a file has a class made from `Trainer`; looks without running it."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return False
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return any(ast.unparse(base).endswith("Trainer") for cls in classes for base in cls.bases)


def describe(cls: Any, file: Path) -> dict[str, Any]:
    """Describes an algorithm.

    Returns: `name`; `needs` and `options`, see `needs_of`; `action_masks`, whether it takes them;
        `about`, the first sentence of the file's docstring.
    """
    needs, options = needs_of(cls)
    about = _sentence(inspect.getmodule(cls).__doc__ or "")  # type: ignore[union-attr]
    return {
        "name": registry.name_of(file),
        "needs": needs,
        "options": options,
        "action_masks": cls.masks_actions,
        "about": about,
    }


def _sentence(text: str) -> str:
    """Returns the first sentence of a text, without papers, which stand in brackets."""
    paragraph = text.strip().partition("\n\n")[0]
    plain = re.sub(r"\s+\([^()]*\d{4}[^()]*\)", "", " ".join(paragraph.split()))
    return re.split(r"\.(?:\s|$)", plain)[0]


def needs_of(cls: Any) -> tuple[list[str], dict[str, str]]:
    """Finds what a trainer takes, by making it for small environments of each kind.

    Returns:
        needs: some of discrete and continuous (either suffices), agents, recurrent, data.
        options: what it takes with other values of its configuration: `{"images": "torso=cnn"}`.
    """
    from mindspore_rl.rl.networks import RECURRENT  # noqa: PLC0415  (imports MindSpore)

    agents = TEAM if cls.multi_agent else {}
    specs = {"discrete": PROBE, "continuous": dataclasses.replace(PROBE, action_space=BOX)}
    trainers = {
        kind: trainer
        for kind, spec in specs.items()
        if (trainer := made(cls, dataclasses.replace(spec, **agents))) is not None
    }
    needs, options = [*trainers, *(["agents"] if agents else [])], {}
    keys = {field.name: field.default for field in dataclasses.fields(cls.Config)}
    if "torso" in keys and made(cls, PIXELS, torso="cnn") is not None:
        options["images"] = "torso=cnn"
    # The loop gives a recurrent policy its state by this name.
    if any(
        "state" in inspect.signature(trainer.actor.act).parameters for trainer in trainers.values()
    ):
        if "torso" in keys and keys["torso"] not in RECURRENT:
            options["recurrent"] = "torso=gru"
        else:
            needs.append("recurrent")
    if "her" in keys:
        options["goals"] = "her=STEPS"
    if needs_data(cls):
        needs.append("data")
    elif "dataset" in keys:
        options["data"] = "dataset=FILE"
    return needs, options


def configurations() -> list[dict[str, Any]]:
    """Describes the built-in configurations: `name`, `algorithm`; `about`, the first comment."""
    rows = []
    for file in sorted((registry.folder("algorithms") / "configs").glob("*.yaml")):
        lines = itertools.takewhile(lambda line: line[:1] == "#", file.read_text().splitlines())
        about = _sentence("\n".join(line.lstrip("# ") for line in lines))
        algorithm = read_yaml(file)["algorithm"]
        rows.append({"name": file.stem, "algorithm": algorithm, "about": about})
    return rows
