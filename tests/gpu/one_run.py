"""Runs a job on one device, in its own process: `one_run.py DEVICE FOLDER CASE`."""

import json
import sys
from pathlib import Path

DEVICE, FOLDER, CASE = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
MARKS = ("action", "advantage", "gradient")


def main() -> None:
    """Writes the records of every boundary to the folder."""
    from mindspore_rl import programs  # noqa: PLC0415
    from mindspore_rl.compiler.pipeline import JobRequest, prepare  # noqa: PLC0415
    from mindspore_rl.jobs import registry  # noqa: PLC0415
    from mindspore_rl.runtime.coordinator.run import JobOptions, run_job  # noqa: PLC0415

    algorithm, policy, environment, settings = CASE
    file = registry.find_algorithm(algorithm)
    request = JobRequest(
        file,
        registry.load_policy(registry.find_policy(policy)),
        programs.trainer_class(file).Config(env=environment, **settings),
        device=DEVICE,
        num_iterations=1,
        record=MARKS,
        timeout_s=240.0,
    )
    plan, _ = prepare(request, FOLDER)
    run_job(plan, FOLDER, JobOptions(progress=False, total_steps=0))


if __name__ == "__main__":
    main()
