"""Prints the table of `msrl check` and what it covered."""

import sys
from collections.abc import Container, Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mindspore_rl.checking import compared
from mindspore_rl.checking.cases import DIFFERENT, EQUAL, FAILED, REFUSED, ROUNDING, Held, Row
from mindspore_rl.environments.registry import warning
from mindspore_rl.errors import shortened
from mindspore_rl.platform.stdio import WIDTH

HEAD = ("policy", "workers", "cells", "outcome", "how far", "where, or why")


def print_table(rows: Sequence[Row]) -> None:
    """Prints the outcome of each case."""
    texts = []
    for row in rows:
        cells = row.case.cells
        cells += f", {row.fallen} of {row.cells} not" if row.fallen else ""
        far = "" if row.far is None else f"{row.far:.1e}"
        text = shortened(row.text, 600)
        texts.append((row.case.policy, str(row.case.workers), cells, row.outcome, far, text))
    print_rows(HEAD, ("workers", "how far"), texts)


def print_rows(head: Sequence[str], right: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table; the columns named in `right` are aligned there."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in head:
        table.add_column(name, justify="right" if name in right else "left")
    for row in rows:
        table.add_row(*row)
    Console(
        width=None if sys.stdout.isatty() else WIDTH, markup=False, emoji=False, highlight=False
    ).print(table)


def print_summary(held: Held, rows: Sequence[Row], possible: int) -> None:
    """Prints which values were compared, which were not, and the number of each outcome.

    Args:
        held: the program.
        rows: the rows of all cases.
        possible: number of cases with `--all`.
    """
    passed = {site for _, run, _ in held.runs.values() for _, site in run.records} - held.unread
    covered: dict[str, list[str]] = {}
    for config, run, _ in held.runs.values():
        covered.setdefault(_what(config, run, passed), []).append(config.env)
    for what, environments in covered.items():
        begin = f"{held.iterations} iterations, each from the plain loop's state, of"
        print(f"{begin} {' and '.join(environments)}, {what}")
    for name, sizes in held.replayed.items():
        print(
            f"{held.iterations} iterations of {name}, {sizes}, asynchronously; compared with the "
            "plain loop that the log of arrivals drives: parameters at the end and each update's "
            f"metrics, within {compared.REPLAYED_TOL:.0e}"
        )
    for name in dict.fromkeys([*(c.env for c, _, _ in held.runs.values()), *held.replayed]):
        if text := warning(name):
            print(f"{name}: {text}")
    for site, line in held.lines.items():
        if held.runs and compared.is_held(site) and site not in passed:
            why = "which no iteration came to; with more --iterations or other keys one may"
            if site in held.unread:
                why = "whose values nobody reads: jobs leave it out"
            print(f"not compared: {site.removeprefix('boundary:')} ({line}), {why}")
    for site in sorted(held.uneven):
        print(
            f"not compared in every iteration: {site.removeprefix('boundary:')} "
            f"({held.lines[site]}), of which a condition left out some turns of a loop"
        )
    if held.runs:
        print("each case ran twice: as it trains, and with the values at marks recorded")
        print(
            f"equal: within {compared.ATOL:.0e} of an array's largest entry (or of 1) and "
            f"{compared.RTOL:.0e} of each; whole numbers exactly"
        )
    outcomes = [row.outcome for row in rows]
    kinds = (EQUAL, ROUNDING, DIFFERENT, FAILED, REFUSED)
    said = ", ".join(f"{outcomes.count(kind)} {kind}" for kind in kinds if kind in outcomes)
    left = f"; {len(rows)} cases of {possible}, --all: every one" if len(rows) < possible else ""
    print(said + left)


def _what(config: Any, run: Any, passed: Container[str]) -> str:
    """Returns a text with the size of an iteration and the values compared in it."""
    sites = {site for _, site in run.records if compared.is_held(site) and site in passed}
    marks = sorted(site.removeprefix("boundary:") for site in sites)
    parameters = sum(name.startswith(compared.PARAMETERS) for name in run.states[-1])
    parts = [*marks, f"{len(run.reports[-1])} metrics", f"{parameters} parameters"]
    return (
        f"num_envs={config.num_envs} num_steps={config.num_steps}: {', '.join(parts)}, and what is "
        "carried over"
    )
