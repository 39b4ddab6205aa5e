"""Runs the rows of the table, the programs of each row in turn, and formats the results."""

import contextlib
import ctypes
import json
import math
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import study
from peers.table import OURS, PEERS, Program, Row, Target
from study import ROOT

from mindspore_rl.platform import toolchain

Marks = list[tuple[float, int]]
"""Seconds on some clock, and environment steps done by then."""
START_TIMEOUT_S = 300.0
EXCHANGE = Path(__file__).with_name("exchange.cpp")
PACKAGES = "mindspore gym gymnasium stable-baselines3 sbx-rl cleanrl ray torch jax mujoco numpy"


@dataclass(frozen=True)
class Result:
    """The results of a row's turns.

    Attributes:
        values: the measurement of each turn, by program.
        exchanges: how fast two cores exchanged a line of the cache before each turn, in ns.
    """

    row: Row
    values: dict[str, list[float]]
    exchanges: tuple[float, ...] = ()

    def ratio(self, target: Target) -> tuple[float, str]:
        """Returns our median over the best of theirs, and whose that is; or ours alone."""
        medians = {name: statistics.median(values) for name, values in self.values.items()}
        ours = medians[self.row.programs[0].name]
        theirs = {name: medians[name] for name in target.against if name in medians}
        if not theirs:
            return (math.nan if target.against else ours), ""
        best = (min if self.row.unit == "s" else max)(theirs, key=theirs.__getitem__)
        return ours / theirs[best], best

    def met(self, target: Target) -> bool:
        """Returns whether a target is reached."""
        ratio, _ = self.ratio(target)
        return ratio <= target.bound if self.row.unit == "s" else ratio >= target.bound


def run(rows: list[Row], seconds: float, warm_up: float, repeats: int) -> list[Result]:
    """Runs rows; skips a peer that is not installed, and prints that.

    Args:
        rows: rows of the table.
        seconds: measured time of each run.
        warm_up: seconds of each run after its first iterations that are not measured.
        repeats: turns, rounded up so that each program's commands run equally often.
    """
    results = []
    for row in rows:
        programs = [program for program in row.programs if installed(program)]
        longest = max(len(program.commands) for program in programs)
        values: dict[str, list[float]] = {program.name: [] for program in programs}
        exchanges: list[float] = []
        if row.unit == "s":
            for program in programs:  # fills the caches
                if not program.cold:
                    seconds_of(program, 0)
        for turn in range(math.ceil(repeats / longest) * longest):
            for program in programs:
                exchanges += exchange()
                if row.unit == "steps/s":
                    value = speed(program, row.steps, seconds, warm_up)
                else:
                    value = (seconds_of if row.unit == "s" else return_of)(program, turn)
                values[program.name].append(value)
                cores = f" (cores exchange a line in {exchanges[-1]:.0f} ns)" if exchanges else ""
                told = f"{row.name}: {program.name} {value:,.2f}{cores}"
                print(told, file=sys.stderr, flush=True)
        results.append(Result(row, values, tuple(exchanges)))
    return results


def exchange() -> list[float]:
    """Measures how fast the first two cores exchange a line of the cache, in ns.

    The host of a virtual machine may move its cores apart and together again, within seconds, and
    what two threads compute together takes up to half as long again on cores that are apart.

    Returns: the shortest of several tries; nothing where there is one core, or no compiler.
    """
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2 or toolchain.compiler() is None:
        return []
    library = ctypes.CDLL(str(toolchain.library(EXCHANGE, {}, (), ("-pthread",))))
    library.exchange.restype = ctypes.c_double
    library.exchange.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    return [min(library.exchange(*cores, 1000) for _ in range(21))]


def installed(program: Program) -> bool:
    """Returns whether a program is installed; if not, prints how to install it."""
    if program.venv is None or (PEERS / program.venv / ".installed").exists():
        return True
    print(f"{program.name} is left out: scripts/setup_peers.sh {program.venv}", file=sys.stderr)
    return False


def speed(program: Program, steps: int, seconds: float, warm_up: float) -> float:
    """Returns environment steps/s, from the first iteration that ends after the warm-up."""
    with tempfile.TemporaryDirectory() as folder, started(program, folder) as job:
        marks = _marks(program, folder, job, steps)
        deadline = time.monotonic() + START_TIMEOUT_S + warm_up + 10 * seconds
        pause = 0.1
        while True:
            time.sleep(pause)
            found = marks()
            warm = [mark for mark in found if mark[0] >= found[0][0] + warm_up]
            if len(warm) > 2 and warm[-1][0] - warm[0][0] >= seconds:
                return (warm[-1][1] - warm[0][1]) / (warm[-1][0] - warm[0][0])
            check(program, folder, job, deadline)
            # Polls rarely: the cores are for the measured programs.
            left = warm_up + seconds - (found[-1][0] - found[0][0]) if found else 0.1
            pause = max(0.1, left)


def seconds_of(program: Program, turn: int) -> float:
    """Returns the seconds of a whole process; infinite if it does not report success."""
    took, log = _ended(program, turn)
    return took if program.says in log else math.inf


def return_of(program: Program, turn: int) -> float:
    """Returns the mean return that a process prints at its end."""
    _, log = _ended(program, turn)
    return float(re.findall(r"mean return (-?[\d.]+)", log)[-1])


def _ended(program: Program, turn: int) -> tuple[float, str]:
    """Runs a whole process. Returns: seconds, and its output."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with started(program, folder, turn, piped=False) as job:
            status = job.wait()
            took = time.perf_counter() - began
        log = Path(folder, "log").read_text()
        if status:
            raise SystemExit(f"{program.name} ended with status {status}\n{log}")
        return took, log


def check(program: Program, folder: str, job: subprocess.Popen, deadline: float = math.inf) -> None:
    """Exits with the output of a program that ended or is late."""
    if job.poll() is not None or time.monotonic() > deadline:
        raise SystemExit(f"{program.name}: no steps\n{Path(folder, 'log').read_text()}")


@contextlib.contextmanager
def started(
    program: Program, folder: str, turn: int = 0, piped: bool = True
) -> Iterator[subprocess.Popen]:
    """Starts a program that writes to a folder: ours a run, all a log; ends it at the end.

    Args:
        program: the program.
        folder: the folder.
        turn: the turn, which says which of its commands.
        piped: True: a peer's output can be read instead of being in the log.
    """
    if program.before:
        subprocess.run(program.before, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    command = list(program.commands[turn % len(program.commands)])
    variables = {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
    if not program.gpu:
        variables |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    if program.threads is not None:
        variables["OMP_NUM_THREADS"] = str(program.threads)
    if program.cold:
        variables["XDG_CACHE_HOME"] = folder
    if program.venv is None:
        command += ["--run-dir", f"{folder}/run"]
    if program.cores is not None:
        command = ["taskset", "-c", program.cores, *command]
    with Path(folder, "log").open("w") as log:
        job = subprocess.Popen(
            command,
            # A peer may write files to its working folder; ours reads the examples in this tree.
            cwd=ROOT if program.venv is None else folder,
            env=os.environ | variables,
            stdout=subprocess.PIPE if piped and program.venv is not None else log,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            yield job
        finally:
            job.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            if job.stdout is not None:
                job.stdout.close()


def _marks(program: Program, folder: str, job: subprocess.Popen, steps: int) -> Callable[[], Marks]:
    """Collects progress: ours by its metrics, a peer's by lines `steps N`, or CleanRL's `SPS:`."""
    if program.venv is None:
        run = Path(folder, "run")
        return lambda: [(found["wall_s"], found["env_steps"]) for found in study.metrics(run)]
    marks: Marks = []

    def collect() -> None:
        for line in job.stdout or ():
            now = time.perf_counter()
            if line.startswith("steps "):
                marks.append((now, int(line.split()[1])))
            elif line.startswith("SPS:"):
                marks.append((now, marks[-1][1] + steps if marks else steps))

    threading.Thread(target=collect, daemon=True).start()
    return lambda: list(marks)


def machine() -> dict[str, str]:
    """Describes the machine and the versions."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), cpu)
    python = {OURS: sys.executable} | {
        venv.parent.name: str(venv.parent / "bin" / "python")
        for venv in sorted(PEERS.glob("*/.installed"))
    }
    facts = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "cpu": f"{cpu}, {len(os.sched_getaffinity(0))} cores",
        "python": platform.python_version(),
    }
    return facts | {name: _versions(path) for name, path in python.items()}


def _versions(python: str) -> str:
    code = (
        "import importlib.metadata as m\n"
        f"have = {{d.name.lower().replace('_', '-'): d.version for d in m.distributions()}}\n"
        f"print(', '.join(f'{{p}} {{have[p]}}' for p in '{PACKAGES}'.split() if p in have))"
    )
    job = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return job.stdout.strip()


def render(results: list[Result], facts: dict[str, str]) -> str:
    """Formats the results in Markdown."""
    rows = []
    for result in results:
        unit, (ours, *peers) = result.row.unit, result.values
        show = "{:,.2f}".format if unit == "s" else "{:,.0f}".format
        cells = {
            name: study.spread(values, show, " s" if unit == "s" else "")
            for name, values in result.values.items()
        }
        ratios, targets = [], []
        for target in result.row.targets:
            ratio, best = result.ratio(target)
            if target.against:
                ratios.append(f"{ratio:.2f} x {best}" if best else "no peer")
            sign = "<=" if unit == "s" else ">="
            word = "x" if target.against else {"s": "s"}.get(unit, "")
            goal = "" if target.goal is None else f", goal {target.goal:g} {word}"
            met = "met" if result.met(target) else "missed"
            targets.append(f"{sign} {target.bound:g} {word}".strip() + f"{goal}: {met}")
        theirs = "; ".join(f"{name} {cells[name]}" for name in peers)
        rows.append((result.row.work, cells[ours], theirs, "; ".join(ratios), "; ".join(targets)))
    if exchanges := [ns for result in results for ns in result.exchanges]:
        facts = facts | {
            "two cores exchange a line of the cache in": f"{study.spread(exchanges)} ns"
        }
    table = study.table(("work", "ours", "peers", "ratio", "target"), rows)
    return "\n".join([*(f"- {name}: {value}" for name, value in facts.items()), "", table])


def as_json(results: list[Result], facts: dict[str, str]) -> str:
    """Returns the results with every turn's value."""
    rows = [
        {
            "name": result.row.name,
            "work": result.row.work,
            "unit": result.row.unit,
            "values": result.values,
            "exchanges_ns": result.exchanges,
            "targets": [
                asdict(target) | {"ratio": result.ratio(target)[0], "met": result.met(target)}
                for target in result.row.targets
            ],
        }
        for result in results
    ]
    return json.dumps({"machine": facts, "rows": rows}, indent=1)
