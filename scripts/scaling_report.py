"""The tables and pictures of `reproduce_scaling.py`, made of its rows."""

from pathlib import Path

import numpy as np
import scaling_accuracy
import study
from scaling_study import SHARES
from study import ROOT, Row

ACCURACY = ROOT / "docs" / "scaling" / "accuracy.csv"


def gains(rows: list[Row], fixed: str) -> str:
    """Returns a table: best and worst policy of each workload, and the gain over a fixed policy."""
    chosen = [row for row in rows if row.get("workload") and row.get("steps_per_s")]
    chosen = [row for row in chosen if row["experiment"] != "sensitivity"]
    lines = []
    for workload in dict.fromkeys(row["workload"] for row in chosen):
        found = [row for row in chosen if row["workload"] == workload]
        found.sort(key=lambda row: -row["steps_per_s"])
        best, worst = found[0], found[-1]
        over = {row["policy"]: best["steps_per_s"] / row["steps_per_s"] for row in found}
        gain = f"{over[fixed]:.1f}" if fixed in over else ""
        fast, slow = f"{best['steps_per_s']:,}", f"{over[worst['policy']]:.1f}"
        lines.append((workload, best["policy"], fast, worst["policy"], slow, gain))
    heads = ("workload", "best", "steps/s", "worst", "best over worst", f"best over {fixed}")
    return study.table(heads, lines)


def by_gpus(rows: list[Row], algorithm: str, cluster: str, other: str) -> str:
    """Milliseconds of an iteration on a cluster, on another in brackets, and the bottleneck."""
    own = [row for row in rows if (row["experiment"], row["algorithm"]) == ("scaling", algorithm)]
    own.sort(key=lambda row: row["gpus"])
    beside = {(r["policy"], r["gpus"]): f" ({_ms(r)})" for r in own if r["cluster"] == other}
    own = [row for row in own if row["cluster"] == cluster]
    cells = [
        (r["policy"], str(r["gpus"]), _ms(r) and _ms(r) + beside.get((r["policy"], r["gpus"]), ""))
        for r in own
    ]
    cells += [(r["policy"], "binds on the largest", r["binds"]) for r in own if "binds" in r]
    return study.pivot("GPUs", cells)


def by_agents(rows: list[Row]) -> str:
    """Milliseconds of an iteration by the number of agents."""
    own = [row for row in rows if row["experiment"] == "agents"]
    cells = [(row["policy"], row["workload"].split()[0], _ms(row)) for row in own]
    return study.pivot("agents", sorted(cells, key=lambda cell: int(cell[1])))


def _ms(row: Row) -> str:
    found = row.get("iteration_ms", "")
    return found and (f"{found:.0f}" if found >= 10 else f"{found:.1f}")


def error_band() -> float:
    """Returns the largest relative error of nine in ten predictions of the accuracy study."""
    rows = [row for row in study.read(ACCURACY) if "again_ms" in row]
    return float(np.quantile(np.abs([scaling_accuracy.error(row) for row in rows]), 0.9))


def draw(rows: list[Row], folder: Path) -> None:
    """Draws curves by GPUs, and the parts of an iteration's time, one picture per algorithm."""
    curves = [row for row in rows if row["experiment"] in ("scaling", "real")]
    curves = [row for row in curves if "iteration_ms" in row or "measured_ms" in row]
    for algorithm in dict.fromkeys(row["algorithm"] for row in curves):
        own = [row for row in curves if row["algorithm"] == algorithm]
        _curves(own, folder / f"{algorithm}.svg")
        _parts(own, folder / f"{algorithm}_parts.svg")


def _curves(rows: list[Row], file: Path) -> None:
    """Draws milliseconds per iteration: lines are predicted, points are measured."""
    clusters, band = list(dict.fromkeys(row["cluster"] for row in rows)), error_band()
    names = list(dict.fromkeys(row["policy"] for row in rows))
    with study.picture(file, (1 + 4.5 * len(clusters), 4.2), len(clusters), legend=4) as axes:
        for cluster, place in zip(clusters, axes, strict=True):
            own = [row for row in rows if row["cluster"] == cluster]
            for number, policy in enumerate(names):
                found, colour = [r for r in own if r["policy"] == policy], f"C{number}"
                x, y = _points(found, "iteration_ms")
                place.plot(x, y, "-", marker="_", markersize=12, color=colour, label=policy)
                place.fill_between(x, y * (1 - band), y * (1 + band), color=colour, alpha=0.1, lw=0)
                place.plot(*_points(found, "measured_ms"), "o", color=colour, markersize=5)
            measured = any("measured_ms" in row for row in own)
            what = "lines predicted, points measured" if measured else "predicted, not measured"
            place.set(xscale="log", yscale="log", title=f"{cluster}\n{what}", xlabel="ranks")
            ticks = sorted({row["gpus"] for row in own})
            place.set_xticks(ticks, map(str, ticks))
            place.minorticks_off()
            place.grid(alpha=0.3)
        axes[0].set_ylabel(f"{rows[0]['algorithm']}: ms an iteration")


def _points(rows: list[Row], key: str) -> np.ndarray:
    """Returns ranks and times, [2, N]."""
    points = [(row["gpus"], row[key]) for row in rows if key in row]
    return np.array(points, float).reshape(-1, 2).T


def _parts(rows: list[Row], file: Path) -> None:
    """Draws the parts of an iteration on the largest number of ranks of each cluster, as bars."""
    rows = [row for row in rows if "iteration_ms" in row]
    clusters = list(dict.fromkeys(row["cluster"] for row in rows))
    size = (1 + 4.5 * len(clusters), 3.4)
    with study.picture(file, size, len(clusters), legend=6, sharey=True) as axes:
        for cluster, place in zip(clusters, axes, strict=True):
            most = max(row["gpus"] for row in rows if row["cluster"] == cluster)
            found = [row for row in rows if (row["cluster"], row["gpus"]) == (cluster, most)]
            names, left = [row["policy"] for row in found], np.zeros(len(found))
            for share in SHARES:
                width = np.array([row[share] / row["iteration_ms"] for row in found])
                colour = "0.9" if share == "waiting" else None
                place.barh(names, width, left=left, label=share, color=colour)
                left += width
            place.set(xlabel="share of an iteration, mean of ranks", xlim=(0, 1))
            place.set_title(f"{cluster}, {most} rank{'s' * (most > 1)}: predicted")
        axes[0].invert_yaxis()
