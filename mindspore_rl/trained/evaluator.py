"""Process that evaluates a run's checkpoints while it trains.

See `runtime/coordinator/evaluator.py`, which starts it and shares a folder with it.
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

from mindspore_rl.platform import interpreter
from mindspore_rl.platform.cache import write_file
from mindspore_rl.runtime import checkpoint
from mindspore_rl.runtime.rank.worker_settings import prepare_mindspore

LOOK_S = 0.1


def main(run_dir: str, folder: str, episodes: str, nice: str) -> None:
    """Evaluates the checkpoints in a folder, the newest first, until the process is ended."""
    interpreter.look_last()
    interpreter.hasten_mindspore()
    _give_way(int(nice))
    while True:
        found = checkpoint.list_checkpoints(Path(folder))
        waiting = [path for path in found if not path.with_suffix(".json").exists()]
        if waiting:
            done = evaluated(Path(run_dir), waiting[-1], int(episodes))
            write_file(waiting[-1].with_suffix(".json"), json.dumps(done))
        else:
            time.sleep(LOOK_S)


def evaluated(run_dir: Path, path: Path, episodes: int) -> dict[str, object]:
    """Returns a checkpoint's iteration and steps, and the returns of its greedy policy."""
    prepare_mindspore()
    from mindspore_rl.trained.evaluate import evaluate  # noqa: PLC0415  (MindSpore, seconds)
    from mindspore_rl.trained.run import EVALUATION_SEED  # noqa: PLC0415  (likewise)

    done = checkpoint.look(path, replay=False)
    returns = evaluate(run_dir, episodes, EVALUATION_SEED, sample=False, which=path)
    return {"iteration": done["iteration"], "env_steps": done["env_steps"], "returns": returns}


def _give_way(nice: int) -> None:
    """Lets other processes go first, also where each session has its share of the cores."""
    os.nice(nice)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(nice))


if __name__ == "__main__":
    main(*sys.argv[1:])
