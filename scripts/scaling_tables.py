"""Reads the rows of `reproduce_scaling.py`, and makes the tables of docs/scaling.md from them."""

import csv
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read(file: Path) -> list[Row]:
    """Reads rows; omits the columns without a number."""
    with file.open(newline="") as stream:
        return [
            {key: _number(text) for key, text in row.items() if text}
            for row in csv.DictReader(stream)
        ]


def _number(text: str) -> Any:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def gains(rows: list[Row], fixed: str) -> str:
    """Returns a table: best and worst policy of each workload, and the gain over a fixed policy."""
    lines = [
        f"| workload | best | steps/s | worst | best over worst | best over {fixed} |",
        "|---|---|---|---|---|---|",
    ]
    chosen = [row for row in rows if row.get("workload") and row.get("steps_per_s")]
    chosen = [row for row in chosen if row["experiment"] != "sensitivity"]
    for workload in dict.fromkeys(row["workload"] for row in chosen):
        found = sorted(
            (row for row in chosen if row["workload"] == workload),
            key=lambda row: -row["steps_per_s"],
        )
        best, worst = found[0], found[-1]
        over = {row["policy"]: best["steps_per_s"] / row["steps_per_s"] for row in found}
        factor = f"{over[fixed]:.1f}" if fixed in over else ""
        lines.append(
            f"| {workload} | {best['policy']} | {best['steps_per_s']:,} | {worst['policy']} | "
            f"{over[worst['policy']]:.1f} | {factor} |"
        )
    return "\n".join(lines)


def by_gpus(rows: list[Row], algorithm: str, cluster: str, other: str) -> str:
    """Milliseconds of an iteration on a cluster, on another in brackets, and the bottleneck."""
    own = [row for row in rows if (row["experiment"], row["algorithm"]) == ("scaling", algorithm)]
    beside = {
        (row["policy"], row["gpus"]): f" ({_ms(row)})"
        for row in own
        if row["cluster"] == other and _ms(row)
    }

    def cell(row: Row) -> str:
        return _ms(row) + beside.get((row["policy"], row["gpus"]), "")

    own = [row for row in own if row["cluster"] == cluster]
    return _grid("GPUs", own, lambda row: row["gpus"], cell, "binds on the largest")


def by_agents(rows: list[Row]) -> str:
    """Milliseconds of an iteration by the number of agents."""
    own = [row for row in rows if row["experiment"] == "agents"]
    return _grid("agents", own, lambda row: int(row["workload"].split()[0]), _ms)


def _grid(
    corner: str,
    rows: list[Row],
    column: Callable[[Row], int],
    cell: Callable[[Row], str],
    last: str = "",
) -> str:
    """Makes a row for each policy with a number, with the bottleneck of its last one.

    Empty if there are no rows.
    """
    if not rows:
        return ""
    columns = sorted(set(map(column, rows)))
    heads = [corner, *map(str, columns), *[last] * bool(last)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for policy in dict.fromkeys(row["policy"] for row in rows):
        found = {column(row): row for row in rows if row["policy"] == policy and _ms(row)}
        cells = [cell(found[key]) if key in found else "" for key in columns]
        if found:
            binds = [list(found.values())[-1].get("binds", "")] * bool(last)
            lines.append(f"| {' | '.join([policy, *cells, *binds])} |")
    return "\n".join(lines)


def _ms(row: Row) -> str:
    found = row.get("iteration_ms", "")
    return found and (f"{found:.0f}" if found >= 10 else f"{found:.1f}")
