"""Draws the pictures of `reproduce_scaling.py`."""

from pathlib import Path

import numpy as np
import scaling_accuracy
from scaling_study import SHARES
from scaling_tables import Row

ROOT = Path(__file__).resolve().parents[1]
ACCURACY = ROOT / "docs" / "scaling" / "accuracy.csv"


def error_band() -> float:
    """Returns the largest relative error of nine in ten predictions of the accuracy study."""
    rows = [row for row in scaling_accuracy.read(ACCURACY) if row["again_ms"]]
    return float(np.quantile(np.abs([scaling_accuracy.error(row) for row in rows]), 0.9))


def draw(rows: list[Row], folder: Path) -> None:
    """Draws curves by GPUs, and the parts of an iteration's time, one picture per algorithm."""
    curves = [row for row in rows if row["experiment"] in ("scaling", "real")]
    curves = [row for row in curves if row.get("iteration_ms") or row.get("measured_ms")]
    for algorithm in dict.fromkeys(row["algorithm"] for row in curves):
        own = [row for row in curves if row["algorithm"] == algorithm]
        _curves(own, folder / f"{algorithm}.svg")
        _parts(own, folder / f"{algorithm}_parts.svg")


def _curves(rows: list[Row], file: Path) -> None:
    """Draws milliseconds per iteration: lines are predicted, points are measured."""
    from matplotlib import pyplot  # noqa: PLC0415

    clusters, band = list(dict.fromkeys(row["cluster"] for row in rows)), error_band()
    figure, axes = pyplot.subplots(
        1, len(clusters), figsize=(1 + 4.5 * len(clusters), 4.2), squeeze=False
    )
    names = list(dict.fromkeys(row["policy"] for row in rows))
    for cluster, place in zip(clusters, axes[0], strict=True):
        ticks = set()
        for number, policy in enumerate(names):
            found = [r for r in rows if (r["cluster"], r["policy"]) == (cluster, policy)]
            colour, ticks = f"C{number}", ticks | {row["gpus"] for row in found}
            lines = [row for row in found if row.get("iteration_ms")]
            x = np.array([row["gpus"] for row in lines])
            y = np.array([row["iteration_ms"] for row in lines])
            place.plot(x, y, "-", marker="_", markersize=12, color=colour, label=policy)
            place.fill_between(x, y * (1 - band), y * (1 + band), color=colour, alpha=0.1, lw=0)
            points = [row for row in found if row.get("measured_ms")]
            ranks, times = ([row[key] for row in points] for key in ("gpus", "measured_ms"))
            place.plot(ranks, times, "o", color=colour, markersize=5)
        measured = any(r.get("measured_ms") for r in rows if r["cluster"] == cluster)
        what = "lines predicted, points measured" if measured else "predicted, not measured"
        place.set(xscale="log", yscale="log", title=f"{cluster}\n{what}", xlabel="ranks")
        place.set_xticks(sorted(ticks), [str(n) for n in sorted(ticks)])
        place.minorticks_off()
        place.grid(alpha=0.3)
    axes[0][0].set_ylabel(f"{rows[0]['algorithm']}: ms an iteration")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, fontsize="small", frameon=False)
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    figure.savefig(file)
    pyplot.close(figure)


def _parts(rows: list[Row], file: Path) -> None:
    """Draws the parts of an iteration on the largest number of ranks of each cluster, as bars."""
    from matplotlib import pyplot  # noqa: PLC0415

    rows = [row for row in rows if row.get("iteration_ms")]
    clusters = list(dict.fromkeys(row["cluster"] for row in rows))
    figure, axes = pyplot.subplots(
        1, len(clusters), figsize=(1 + 4.5 * len(clusters), 3.4), squeeze=False, sharey=True
    )
    for cluster, place in zip(clusters, axes[0], strict=True):
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
    axes[0][0].invert_yaxis()
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=6, fontsize="small", frameon=False)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.savefig(file)
    pyplot.close(figure)
