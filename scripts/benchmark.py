#!/usr/bin/env python3
"""Measures steps per second of training beside other libraries, in turn.

    .venv/bin/python scripts/benchmark.py --repeats 5
    .venv/bin/python scripts/benchmark.py --only gym-8 a2c --seconds 2 --repeats 1

Each row of scripts/peers/table.py runs this project and other libraries in turn, each in its
virtual environment (scripts/setup_peers.sh makes them), and prints medians, ranges, and the ratio
to the best of them with its target. Turns alternate, so a drift of the machine shows as spread.
"""

import argparse
import signal
import sys
from pathlib import Path

import study
from peers import table, turns

PROFILED = 60


def main() -> int:
    """Runs the benchmark. Returns: 1 if a target was missed, 2 for a wrong name."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="each run (default: 10)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="names of rows")
    parser.add_argument("--warm-up", type=float, default=3.0, help="seconds (default: 3)")
    parser.add_argument("--profile", action="store_true", help="show where our time goes in a row")
    parser.add_argument("--json", type=Path, help="file for every turn's values")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # SIGTERM ends the running program too
    known = {row.name: row for row in table.rows()}
    if unknown := set(args.only or ()) - set(known):
        print(f"no row {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    rows = [known[name] for name in args.only or known]
    if args.profile:
        for row in rows:
            if row.unit == "steps/s":
                words = row.programs[0].commands[0][4:]
                words = [word for word in words if not word.startswith("total_steps=")]
                found = study.profile(*words, total_steps=PROFILED * row.steps)
                print(f"{row.work}\n\n{found}\n", flush=True)
        return 0
    results = turns.run(rows, args.seconds, args.warm_up, args.repeats)
    facts = turns.machine()
    print(turns.render(results, facts))
    if args.json:
        args.json.write_text(turns.as_json(results, facts) + "\n")
    return 0 if all(r.met(target) for r in results for target in r.row.targets) else 1


if __name__ == "__main__":
    sys.exit(main())
