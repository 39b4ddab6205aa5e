"""Run directories: makes one for a job, and writes the request to `job.json`.

`msrl eval` and `--resume` run the code in it, so whoever can write there can run code here.
"""

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindspore_rl import __version__, config
from mindspore_rl.errors import MsrlError
from mindspore_rl.jobs import registry
from mindspore_rl.plan.plan import JOB_FILE, PLAN_FILE
from mindspore_rl.platform import user_modules
from mindspore_rl.platform.cache import make_folder, others, replaceable, write_file
from mindspore_rl.platform.names import check_name
from mindspore_rl.platform.stdio import say

DEPLOYMENT_FILE = "deployment.yaml"
"""A copy of the deployment, if the job has one."""
PROBE_BYTES = 1 << 20
"""The disk counts as full if it has less room than this before anything starts."""
CODE_FOLDERS = (
    user_modules.FOLDER,
    user_modules.POLICY_FOLDER,
    user_modules.ENVIRONMENT_FOLDER,
    "fragments",
)
"""Folders of a run that contain code."""
KINDS = {
    "algorithm": str,
    "policy": str,
    "schedule": dict,
    "workers": int,
    "config": dict,
    "deployment": str,
    "cells": str,
}
"""Types of the values in `job.json`."""
HINT = ": use it with --trust if you trust all who could have written it"


@contextlib.contextmanager
def new_directory(chosen: Path | None, name: str, trust: bool = False) -> Iterator[Path]:
    """Makes a new directory for a run, and removes it if the run cannot start.

    Args:
        chosen: the directory that the user asked for.
        name: its name in `runs` if none was chosen; a number is added if it exists.
        trust: accept a directory that others own or can write.

    Raises:
        MsrlError: it cannot be written, others can write it, or it contains a run.
    """
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    for run_dir in [chosen] if chosen else (Path("runs", found) for found in names):
        if chosen:
            check_name(f"run directory {chosen}", chosen.resolve().name)
        existed = run_dir.exists()
        try:
            make_folder(run_dir)
            try:
                check_place(run_dir, trust)
            except MsrlError:
                if not existed:
                    run_dir.rmdir()
                raise
            with tempfile.TemporaryFile(dir=run_dir) as probe:  # nameless: no link can redirect it
                probe.write(bytes(PROBE_BYTES))
        except OSError as error:
            raise MsrlError(
                f"run directory {run_dir} cannot be written ({error.strerror}); choose "
                "another with --run-dir"
            ) from error
        claim = _claim(run_dir / JOB_FILE)
        if claim is not None:
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
    finally:
        os.close(claim)


def _claim(path: Path) -> int | None:
    """Claims a run directory by its `job.json`, which no other run may have.

    An empty `job.json` that no process holds is of a run that was killed before it began.

    Returns: a descriptor that holds the file until it is closed; None: another run has it.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.ExitStack() as opened:
        try:
            claim = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
            new = True
        except FileExistsError:
            if path.is_symlink() or path.stat().st_size:
                return None
            claim, new = os.open(path, flags), False
        opened.callback(os.close, claim)
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if isinstance(error, BlockingIOError) or not new:
                return None  # otherwise the file system has no locks
        if os.fstat(claim).st_size:
            return None
        opened.pop_all()
        return claim


def write_job(run_dir: Path, request: Any) -> None:
    """Writes the request of a job, which `--resume` reads."""
    if request.policy_file:
        user_modules.keep(Path(request.policy_file), run_dir / user_modules.POLICY_FOLDER)
    if request.deployment_file:
        write_file(run_dir / DEPLOYMENT_FILE, Path(request.deployment_file).read_bytes())
    job = {
        "algorithm": registry.name_of(request.algorithm),
        "policy": request.policy_file and registry.name_of(Path(request.policy_file)),
        "schedule": config.to_dict(request.policy.schedule),
        "workers": request.workers,
        "config": config.to_dict(request.config),
        "config_file": request.config_file,
        "deployment": request.deployment_file,
        "cells": request.cells,
        "version": __version__,
    }
    write_file(run_dir / JOB_FILE, json.dumps(job, indent=1))


def check_trusted(run: Path, trust: bool = False) -> None:
    """Checks that nobody but this user can have written the code in a run.

    Raises:
        MsrlError: another user can have written it.
    """
    if trust:
        return
    _check_above(run)
    for name in (".", JOB_FILE, PLAN_FILE, DEPLOYMENT_FILE):
        _check_own(run / name)
    for name in CODE_FOLDERS:
        folder = run / name
        for path in (folder, *folder.rglob("*")):  # including the bytecode that Python cached
            _check_own(path)


def check_place(folder: Path, trust: bool = False) -> None:
    """Checks that no other user can write into a folder in which runs are made.

    Raises:
        MsrlError: another user can write there, or has written there.
    """
    if trust:
        return
    _check_above(folder)
    for path in (folder, *(folder.iterdir() if folder.is_dir() else ())):
        _check_own(path)


def _check_above(folder: Path) -> None:
    """Checks that no other user can replace the folder."""
    if why := replaceable(folder, by_all=True):
        raise MsrlError(f"{why}, so others could put their own in the place of {folder}{HINT}")


def _check_own(path: Path) -> None:
    """Checks the owner and mode of a file or folder, and of a link to it, if it exists."""
    for follow in (False, True):
        try:
            found = path.stat(follow_symlinks=follow)
        except OSError:
            continue  # a missing or unreadable file is not run
        if why := others(found, os.getuid()):
            raise MsrlError(f"{path} {why}, and what is in a run directory is run{HINT}")


def earlier_job(run: Path | None) -> dict[str, Any]:
    """Reads the request of an earlier run; returns an empty one without a run.

    A file that has changed or is missing is replaced by the run's copy.

    Raises:
        MsrlError: it is not a run directory.
    """
    if run is None:
        return {}
    try:
        job = json.loads((run / JOB_FILE).read_bytes())
        for key, kind in KINDS.items():
            if job.get(key) is not None and not isinstance(job[key], kind):
                raise TypeError(f"{key} is {str(job[key])[:100]!r} in {JOB_FILE}")
        for key, folder in (
            ("algorithm", user_modules.FOLDER),
            ("policy", user_modules.POLICY_FOLDER),
        ):
            file = user_modules.unchanged(registry.file_of(job[key]), run.resolve() / folder)
            job[key] = str(file)
        if job.get("deployment") and not Path(job["deployment"]).is_file():
            job["deployment"] = str(run.resolve() / DEPLOYMENT_FILE)
        job["config"]["env"] = user_modules.unchanged_environment(job["config"]["env"], run)
        return job
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MsrlError(
            f"{run} is not a run directory ({error}); expected one that `msrl train` wrote"
        ) from error


def tell_copies(run: Path, *files: str) -> None:
    """Prints which of the used files are a run's copies."""
    for file in files:
        if Path(file).is_relative_to(run.resolve()):
            say(
                f"{file} is used, the run's copy: the file that it was made of has been "
                "changed or is gone"
            )


def tell_deployment(run: Path, file: Path) -> None:
    """Prints a note if a run's deployment has changed since the run started."""
    copy = run / DEPLOYMENT_FILE
    if copy.is_file() and copy.read_bytes() != file.read_bytes():
        say(
            f"{file} is used as it is now: it has been changed since the run began (for the "
            f"hosts of then: --deployment {copy})"
        )
