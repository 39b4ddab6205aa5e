"""Admission: checks memory, descriptors and cores before a job starts."""

from mindspore_rl.errors import MsrlError
from mindspore_rl.plan.plan import Plan
from mindspore_rl.platform import resources

RANK_BYTES, STARTING_BYTES = 190 << 20, 450 << 20
"""Private memory of a rank, without the libraries that all ranks share: the least of one that
trained (196 to 292 MiB: PPO on CartPole, native cells, mindspore 2.10.0), and the peak while
compiling."""
ADDRESS_BYTES = 3_000_000 << 10
"""Address space of a process that imports MindSpore: PPO on CartPole trained within it; with a
fifth less it aborted at arbitrary places (mindspore 2.10.0)."""
DESCRIPTORS, RANK_DESCRIPTORS = 48, 4
"""Open files of a process of a job, and more for each rank; a job of three ranks runs with 64."""
START_TIMEOUT_S, GPU_START_TIMEOUT_S = 300.0, 1800.0
"""If each rank has a core; on GPUs the driver may have to compile MindSpore's kernels once."""


def start_timeout_s(plan: Plan, cores: int) -> float:
    """Returns the deadline of a start; ranks that share a core import and compile in turn."""
    if plan.device == "GPU":
        return GPU_START_TIMEOUT_S
    return START_TIMEOUT_S * max(1.0, _here(plan) / cores)


def check_address_space(limit_bytes: float) -> None:
    """Refuses an address-space limit under which MindSpore would abort. Raises: MsrlError."""
    if limit_bytes < ADDRESS_BYTES:
        raise MsrlError(
            f"a process may use {limit_bytes / 2**20:,.0f} MiB of addresses here, and MindSpore "
            f"needs {ADDRESS_BYTES >> 20:,}: raise the limit (ulimit -v unlimited)"
        )


def check_descriptors(ranks: int = 1) -> None:
    """Raises the limit of open files to what the ranks need, if allowed. Raises: MsrlError."""
    least = DESCRIPTORS + RANK_DESCRIPTORS * ranks
    if (limit := resources.descriptors(least)) < least:
        raise MsrlError(
            f"a process may have {limit} files open here, and a job of {ranks} "
            f"rank{'s' * (ranks > 1)} needs {least}: raise the limit (ulimit -n 1024)"
        )


def check_working_folder() -> None:
    """Refuses to start in a working folder that was removed. Raises: MsrlError."""
    if not resources.has_working_folder():
        raise MsrlError("the working folder has been removed; change to one that is there (cd)")


def check_memory(plan: Plan, available_bytes: int) -> str:
    """Refuses a job whose ranks need more memory than this machine has.

    Returns: a warning if memory may run short while the ranks start, else an empty text.

    Raises:
        MsrlError: memory does not suffice even after the start.
    """
    ranks = _here(plan)
    fewer = "fewer --workers with more environments each, or more hosts (docs/cluster.md)"
    said = f"{ranks} ranks take {{}} MiB of memory, and {available_bytes >> 20} MiB are free"
    if plan.in_one_process or ranks * STARTING_BYTES <= available_bytes:
        return ""
    if ranks * RANK_BYTES <= available_bytes:
        return f"{said.format(ranks * STARTING_BYTES >> 20)}: if one is killed, use {fewer}"
    raise MsrlError(f"{said.format(f'at least {ranks * RANK_BYTES >> 20}')}: use {fewer}")


def _here(plan: Plan) -> int:
    """Counts the ranks of this machine that import MindSpore."""
    ranks = (r for f in plan.fragments if f.needs_tensors for r in f.ranks)
    return sum(plan.same_host(rank, 0) for rank in ranks)
