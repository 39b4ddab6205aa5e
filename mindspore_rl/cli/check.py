"""`msrl check`: compares a program with its plain loop, by policy and number of workers."""

import argparse
import contextlib
import itertools
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mindspore_rl.checking import table
from mindspore_rl.checking.cases import DIFFERENT, FAILED, REFUSED, SMALL, Case, Held, Row
from mindspore_rl.cli.job_flags import add_options, add_schedule
from mindspore_rl.config import Range
from mindspore_rl.errors import MsrlError
from mindspore_rl.jobs import registry
from mindspore_rl.jobs.job import ALGORITHM, NO_FILE, Job, scheduled, with_file
from mindspore_rl.jobs.options import Number
from mindspore_rl.platform import gpu, toolchain
from mindspore_rl.platform.held_signals import heard
from mindspore_rl.platform.stdio import say

WORKERS = (3, 2, 1)
NATIVE, MINDSPORE = "native", "mindspore"


def add(subparsers: Any, command: Any, argv: list[str]) -> None:
    """Adds the subcommand."""
    text = "compare an algorithm with its plain loop, value by value, under every policy"
    parser = command(subparsers, "check", check, text, argv)
    add_options(parser, ALGORITHM)
    parser.add_argument(
        "--policy",
        dest="policies",
        nargs="+",
        action="extend",
        type=_policy,
        metavar="POLICY",
        completer=lambda _: registry.policies(),
        help=f"{', '.join(registry.policies())}, or .py files (default: all of these)",
    )
    parser.add_argument(
        "--workers",
        dest="numbers",
        nargs="+",
        action="extend",
        type=Number(int, Range(1)),
        metavar="N",
        help="numbers of workers (default: 3 2 1)",
    )
    add_schedule(parser)
    parser.add_argument(
        "--cells",
        dest="kind",
        choices=(NATIVE, MINDSPORE),
        help="kind of compiled cells (default: native code, and MindSpore in one case of each "
        "form of the environment)",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "gpu"),
        default="cpu",
        help="where cells run; the plain loop runs on the CPU (default: cpu)",
    )
    parser.add_argument(
        "--iterations",
        type=Number(int, Range(1)),
        metavar="N",
        help="iterations that are compared (default: 3, and a schedule's lag)",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="every policy with every number of workers and both kinds of cells; by default each "
        "occurs, but not every combination",
    )


def _policy(word: str) -> str:
    """Returns a policy's name. Raises: argparse.ArgumentTypeError: it is an algorithm's."""
    if word in registry.algorithms():
        raise argparse.ArgumentTypeError(f"{word!r} is an algorithm, expected a policy")
    return word


def check(args: argparse.Namespace) -> int:
    """Runs `msrl check`. Returns: 1 if a job differs from the plain loop or fails, else 0."""
    files = [registry.find_policy(word) for word in args.policies or registry.policies()]
    policies = [(str(file), registry.load_policy(file).name) for file in files]
    workers = sorted(set(args.numbers or WORKERS), reverse=True)
    kinds = [args.kind] if args.kind else [NATIVE, MINDSPORE]
    if args.device == "gpu":
        kinds = _kinds_on_gpu(args.kind)
    elif not args.kind and toolchain.compiler() is None:
        say("there is no C++ compiler, so no native cells")
        kinds = [MINDSPORE]
    args.config = args.config or NO_FILE  # a task's values would make the cases large
    job = with_file(Job.of(args))
    # Two iterations act with parameters of the run itself, whatever the lag.
    lags = [scheduled(job, policy).lag for policy in map(registry.load_policy, files)]
    iterations = args.iterations or 3 + max(lags)
    with _ended_by_signals(), tempfile.TemporaryDirectory(prefix="msrl-check-") as folder:
        for name, sizes in {"small": SMALL, "own": {}}.items():
            held = Held(job, Path(folder, name), iterations, sizes)
            rows = list(_rows(held, policies, workers, kinds, args.all))
            outcomes = {row.outcome for row in rows}
            if outcomes != {REFUSED} or not held.shrunk:
                break
            say(f"all refused with {held.shrunk}: once more with the configuration's own")
    table.print_table(rows)
    table.print_summary(held, rows, len(policies) * len(workers) * len(kinds))
    if outcomes == {REFUSED}:
        raise MsrlError("nothing was compared: every case is refused")
    return 1 if outcomes & {DIFFERENT, FAILED} else 0


def _kinds_on_gpu(kind: str | None) -> list[str]:
    """Prepares a comparison on the GPU, without TF32. Raises: MsrlError: it is not possible."""
    if kind == NATIVE:
        gpu.refuse_native_cells()
    gpu.choose("gpu")
    # With TF32 a product has 10 bits of mantissa, and nothing would be equal to 1e-4.
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    return [MINDSPORE]


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Context: SIGTERM and SIGHUP raise KeyboardInterrupt, so that cleanup runs as after Ctrl-C."""
    others = heard() - {signal.SIGINT}
    before = {number: signal.signal(number, signal.default_int_handler) for number in others}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def cover(
    policies: Sequence[tuple[str, str]], workers: Sequence[int], cells: str
) -> Iterator[Case]:
    """Chooses the fewest cases in which every policy and every number of workers occurs."""
    for i in range(max(len(policies), len(workers))):
        yield Case(*policies[i % len(policies)], workers[i % len(workers)], cells)


def _rows(
    held: Held,
    policies: Sequence[tuple[str, str]],
    workers: Sequence[int],
    kinds: Sequence[str],
    every: bool,
) -> Iterator[Row]:
    """Runs the cases. In a cover, the first case of each environment form compares all cells."""
    if every:
        for policy, number, kind in itertools.product(policies, workers, kinds):
            yield held.row(Case(*policy, number, kind))
        return
    firsts: dict[str, Case] = {}
    for case in cover(policies, workers, kinds[0]):
        row = held.row(case)
        yield row
        if row.environment:
            firsts.setdefault(row.environment, case)
    for kind, case in itertools.product(kinds[1:], firsts.values()):
        yield held.row(replace(case, workers=workers[len(workers) // 2], cells=kind))
