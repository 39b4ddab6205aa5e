"""Settings that the launcher gives a worker through environment variables."""

import json
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of one worker process.

    Attributes:
        coordinator: host and port of the coordinator's link.
        token: secret that the coordinator expects.
        scheduler: host and port of MindSpore's scheduler, if the job has a group.
        cores: of each rank; empty: no pinning.
    """

    run_dir: Path
    coordinator: tuple[str, int]
    token: str
    scheduler: tuple[str, int] | None
    cores: tuple[tuple[int, ...], ...]


def worker_settings() -> WorkerSettings:
    """Reads `MSRL_RUN`, `_COORDINATOR`, `_SECRETS`, `_TOKEN`, `_SCHEDULER` and `_CORES`.

    Secret variables are read from a file and added to this process's environment.
    """
    coordinator = _address("MSRL_COORDINATOR")
    assert coordinator is not None, "a worker is started by `msrl train`, not by hand"
    cores = os.environ.get("MSRL_CORES", "")
    os.environ.update(json.loads(Path(os.environ["MSRL_SECRETS"]).read_text(encoding="utf-8")))
    return WorkerSettings(
        Path(os.environ["MSRL_RUN"]),
        coordinator,
        os.environ["MSRL_TOKEN"],
        _address("MSRL_SCHEDULER"),
        tuple(tuple(map(int, own.split(","))) for own in cores.split(";") if own),
    )


def _address(variable: str) -> tuple[str, int] | None:
    text = os.environ.get(variable)
    if not text:
        return None
    host, _, port = text.rpartition(":")
    return host, int(port)


def prepare_mindspore() -> None:
    """Sets variables that MindSpore reads at import.

    Without blocking launches the main thread busy-waits for results while kernel threads starve:
    one small training step takes up to 20 ms instead of 0.3 on 2 cores.
    """
    os.environ.setdefault("MS_DEV_HOST_BLOCKING_RUN", "1")
    os.environ.setdefault("GLOG_v", "3")
