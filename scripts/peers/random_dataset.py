#!/usr/bin/env python3
"""Makes a data set of random numbers in the form of CartPole-v1, unless the file exists.

.venv/bin/python scripts/peers/random_dataset.py FILE
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

EPISODES, STEPS = 200, 200


def main() -> None:
    """Makes the data set."""
    place = Path(sys.argv[1])
    if place.exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    count, chance = EPISODES * STEPS, np.random.default_rng(1)
    arrays = {
        "observations": chance.normal(size=(count, 4)).astype(np.float32),
        "actions": chance.integers(2, size=count),
        "rewards": np.ones(count, np.float32),
        "terminals": np.arange(count) % STEPS == STEPS - 1,
    }
    with tempfile.TemporaryDirectory() as folder:
        np.savez(file := Path(folder, "random.npz"), **arrays)
        words = ("dataset", "import", str(file), str(place), "--env", "CartPole-v1")
        subprocess.run((sys.executable, "-m", "mindspore_rl.cli", *words), check=True)


if __name__ == "__main__":
    main()
