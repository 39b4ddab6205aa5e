"""The directory of a run: made for it alone, with what was asked for in `job.json`."""

import contextlib
import itertools
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindspore_rl import __version__, config, loading
from mindspore_rl.errors import MsrlError
from mindspore_rl.names import check_name
from mindspore_rl.plan.plan import PLAN_FILE
from mindspore_rl.storage import writing

JOB_FILE = "job.json"
FRAGMENTS = "fragments"
PROBE_BYTES = 1 << 20
"""Less room than this is a full disk before anything is started."""


@contextlib.contextmanager
def new_directory(chosen: Path | None, name: str) -> Iterator[Path]:
    """Makes a directory of this run's own, and takes it away again if nothing can be run.

    Args:
        chosen: by the user.
        name: of a folder of `runs`, if none was chosen; a number is added if it is taken.
    """
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    for run_dir in [chosen] if chosen else (Path("runs", found) for found in names):
        if chosen:
            check_name(f"run directory {chosen}", chosen.resolve().name)
        existed = run_dir.exists()
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            probe = run_dir / ".writable"
            try:
                probe.write_bytes(bytes(PROBE_BYTES))
            finally:
                probe.unlink(missing_ok=True)
        except OSError as error:
            raise MsrlError(
                f"run directory {run_dir} cannot be written ({error.strerror}); choose "
                "another with --run-dir"
            ) from error
        with contextlib.suppress(FileExistsError):  # of a run that may be starting just now
            (run_dir / JOB_FILE).open("x").close()
            break
    else:
        raise MsrlError(
            f"run directory {run_dir} already holds a run; choose another with "
            "--run-dir, or continue it with --resume"
        )
    try:
        yield run_dir
    except BaseException:
        if existed:
            (run_dir / JOB_FILE).unlink()
        else:
            shutil.rmtree(run_dir)
        raise


def check_trust(run_dir: Path) -> None:
    """Looks whether what a run has kept, which is run again, is this user's.

    A folder that a group may write is its members' affair: many systems make all of them so.

    Raises:
        MsrlError: somebody else owns it (root excepted, who needs no such way), or may write it.
    """
    kept = (loading.FOLDER, FRAGMENTS)
    for path in [run_dir, run_dir / JOB_FILE, run_dir / PLAN_FILE] + [
        path for folder in kept for path in [run_dir / folder, *(run_dir / folder).rglob("*")]
    ]:
        try:
            found = path.stat()
        except OSError:
            continue  # said by who needs it
        whose = None
        if found.st_uid not in (os.getuid(), 0):
            whose = f"belongs to user {found.st_uid}"
        elif found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            whose = "can be written by everybody"
        if whose:
            raise MsrlError(
                f"{path} {whose}, and a run directory holds programs that would now be run as "
                f"user {os.getuid()}: if you trust who wrote it, say --trust"
            )


def write_job(run_dir: Path, request: Any) -> None:
    """Keeps what was asked for, from which `--resume` starts."""
    job = {
        "algorithm": str(request.algorithm),
        "policy": request.policy_file,
        "schedule": config.to_dict(request.policy.schedule),
        "workers": request.workers,
        "config": config.to_dict(request.config),
        "deployment": request.deployment_file,
        "cells": request.cells,
        "version": __version__,
    }
    with writing(run_dir / JOB_FILE):
        (run_dir / JOB_FILE).write_text(json.dumps(job, indent=1))


def earlier_job(run: Path | None) -> dict[str, Any]:
    """What a run was asked for; nothing of none.

    Raises:
        MsrlError: it is no run directory.
    """
    if run is None:
        return {}
    try:
        job = json.loads((run / JOB_FILE).read_text())
        return {**job, "algorithm": str(loading.kept(run, job["algorithm"]))}
    except (OSError, ValueError, KeyError) as error:
        raise MsrlError(
            f"{run} is not a run directory ({error}); expected one that `msrl train` wrote"
        ) from error
