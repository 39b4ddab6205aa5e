"""Policies that come with the package: `msrl eval pretrained:ppo/CartPole-v1`.

Each is a file of parameters and the configuration that they were trained with. It becomes a run
directory in `runs`, as if it had been trained here.
"""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.compiler import pipeline
from mindspore_rl.errors import MsrlError
from mindspore_rl.jobs import job as jobs
from mindspore_rl.jobs import registry
from mindspore_rl.jobs.run_directory import write_job
from mindspore_rl.plan.plan import OUTCOME_FILE, PLAN_FILE, save_plan
from mindspore_rl.platform.cache import make_folder, write_file, writing
from mindspore_rl.platform.stdio import say
from mindspore_rl.runtime import checkpoint

PREFIX = "pretrained:"
ABOUT = "about"
"""The array with the metadata of the checkpoint, as JSON."""
OPTIMISER = "parameters/learner.optimizer.moment"


def names() -> list[str]:
    """Lists the policies, such as `pretrained:ppo/CartPole-v1`."""
    files = [file.relative_to(_folder()).with_suffix("") for file in _folder().rglob("*.npz")]
    return sorted(f"{PREFIX}{file}" for file in files)


def _folder() -> Path:
    return registry.folder("algorithms") / "pretrained"


def save(run_dir: Path, file: Path) -> None:
    """Writes the newest checkpoint of a run as such a file, without the optimiser's moments."""
    path, _, _ = checkpoint.load_newest(run_dir / checkpoint.FOLDER, replay=False)
    arrays, done = checkpoint.load(path, replay=False)
    kept = {
        name: value
        for name, value in arrays.items()
        if name.startswith(("parameters/", "variables/"))
    }
    kept |= {name: np.zeros_like(kept[name]) for name in kept if name.startswith(OPTIMISER)}
    about = {key: value for key, value in done.items() if key not in ("arrays", "format")}
    make_folder(file.parent)
    np.savez_compressed(file, **kept, **{ABOUT: np.array(json.dumps(about))})


def run_of(name: str) -> Path:
    """Returns the run directory of a policy, `runs/pretrained-...`, which is made at first.

    Raises:
        MsrlError: there is no such policy, or the directory cannot be made.
    """
    if name not in names():
        raise MsrlError(f"{name}: no such policy; there are {', '.join(names())}")
    own = name.removeprefix(PREFIX)
    run_dir = Path("runs", f"pretrained-{own.replace('/', '-')}")
    if (run_dir / PLAN_FILE).is_file():
        return run_dir
    with writing(run_dir):
        make_folder(run_dir.parent)
        made = Path(tempfile.mkdtemp(prefix=".pretrained-", dir=run_dir.parent))
        try:
            made.chmod(0o755)
            _make(_folder() / f"{own}.npz", made)
            with contextlib.suppress(OSError):  # another process was faster
                made.rename(run_dir)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    say(f"{name} is in {run_dir}")
    return run_dir


def _make(file: Path, run_dir: Path) -> None:
    with np.load(file) as found:
        arrays = {name: found[name] for name in found.files if name != ABOUT}
        about: dict[str, Any] = json.loads(str(found[ABOUT]))
    request = jobs.request(jobs.Job(about["algorithm"], config=about["config"]))
    plan, _ = pipeline.prepare(request, run_dir, lambda name, result: None)
    write_job(run_dir, request)
    save_plan(plan, run_dir)
    write_file(run_dir / OUTCOME_FILE, json.dumps({"stopped": "pretrained", "error": ""}) + "\n")
    iteration = about.pop("iteration")
    checkpoint.save(run_dir / checkpoint.FOLDER, iteration, arrays, about)
