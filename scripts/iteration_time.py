"""Measures the time of an iteration of a job by running it."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from network_hosts import Network

ROOT = Path(__file__).resolve().parents[1]
WARM_UP, SECONDS, MIN, MAX = 14, 3.0, 10, 600
"""Iterations that do not count; time of the others, and their smallest and largest number."""


class NotMeasured(Exception):
    """A job failed; the text is the first line of its error."""


def iteration_ms(
    words: list[str],
    settings: dict[str, object],
    guess_s: float,
    deployment: Path | None = None,
    network: Network | None = None,
) -> float:
    """Trains for a while.

    Args:
        words: arguments of `msrl train`: the algorithm, and flags.
        settings: keys of its configuration, among them `num_envs` and `num_steps`.
        guess_s: about the time of an iteration.
        deployment: the hosts to train on.
        network: the network whose first host trains.

    Raises:
        NotMeasured: the job failed.
    """
    iterations = WARM_UP + min(max(round(SECONDS / guess_s), MIN), MAX)
    steps = iterations * int(str(settings["num_envs"])) * int(str(settings["num_steps"]))
    command = [sys.executable, "-m", "mindspore_rl.cli", "train", *words, "--quiet"]
    command += ["--total-steps", str(steps), "--stop-return", "nan"]
    command += [f"{key}={value}" for key, value in settings.items()]
    command += ["--deployment", str(deployment)] if deployment else []
    environment = None
    with tempfile.TemporaryDirectory() as folder:
        command += ["--run-dir", f"{folder}/run"]
        if network is not None:
            environment = {**network.environment(), "PYTHONPATH": str(ROOT)}
            command = network.command(0, command)
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT
        )
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise NotMeasured(said[0] if said else "no reason was given")
        lines = Path(folder, "run", "metrics.jsonl").read_text().splitlines()
    times = [json.loads(line)["wall_s"] for line in lines][WARM_UP - 1 :]
    return 1e3 * (times[-1] - times[0]) / (len(times) - 1)
