"""Post-run check: a successful run wrote job.json, plan.json, metrics and the last checkpoint."""

import json
from collections import deque
from pathlib import Path

from mindspore_rl.errors import JobFailure, MsrlError
from mindspore_rl.plan.plan import JOB_FILE, PLAN_FILE
from mindspore_rl.runtime import checkpoint
from mindspore_rl.runtime.coordinator.metrics_file import METRICS_FILE, read_lines


def check_whole(run_dir: Path, iterations: int, saved: str | None) -> None:
    """Checks that a finished job has written all its files.

    Raises:
        JobFailure: a file is missing, damaged or of another iteration.
    """
    path = run_dir
    try:
        for name in (JOB_FILE, PLAN_FILE):
            path = run_dir / name
            json.loads(path.read_text())
        path = run_dir / METRICS_FILE
        numbers = deque((line["iteration"] for line in read_lines(path)), maxlen=1)
        if list(numbers) != [iterations]:
            raise ValueError(f"its last line is of iteration {list(numbers)}")
        path = Path(saved or run_dir / checkpoint.FOLDER)
        if (found := checkpoint.look(path)["iteration"]) != iterations:
            raise ValueError(f"the last one is of iteration {found}")
    except (OSError, ValueError, KeyError, TypeError, MsrlError) as error:
        raise JobFailure(
            f"all {iterations} iterations were done, but {path} is not as it should be: {error}"
        ) from error
