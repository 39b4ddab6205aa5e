#!/usr/bin/env python3
"""Runs the unmodified dqn.py of CleanRL's package until a mean return.

    .peers/cleanrl/bin/python scripts/peers/cleanrl_dqn.py 475 --seed 1

It uses its own settings, except for flags after the return. This program reads its output on
episodes, and prints `solved` at the first mean of 100 that reaches the return. In place of its line
on speed, of every 100 steps, it prints `steps N`.
"""

import itertools
import re
import runpy
import sys
from collections import deque
from typing import Any


def main() -> None:
    """Trains."""
    goal, returns = float(sys.argv.pop(1)), deque[float](maxlen=100)
    steps = itertools.count(100, 100)

    def say(*values: Any) -> None:
        print(*(("steps", next(steps)) if values[0] == "SPS:" else values), flush=True)
        if found := re.search(r"episodic_return=\[?([\d.]+)", str(values[0])):
            returns.append(float(found[1]))
            if len(returns) == 100 and sum(returns) / 100 >= goal:
                print("solved", flush=True)
                sys.exit()

    runpy.run_module("cleanrl.dqn", {"print": say}, run_name="__main__")


if __name__ == "__main__":
    main()
