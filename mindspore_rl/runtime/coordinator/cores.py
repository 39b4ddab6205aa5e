"""Reserves cores for the ranks of a job, by a lock file for each core."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator

from mindspore_rl.platform.cache import own_folder, temporary


@contextlib.contextmanager
def pin_cores(
    num_ranks: int, note: Callable[[str], None]
) -> Iterator[list[tuple[int, ...]] | None]:
    """Reserves cores for each rank, against other jobs, while the context lasts.

    Args:
        num_ranks: ranks; 0 reserves nothing.
        note: called with a message if other jobs have reserved cores, which makes this one slower.

    Yields: the cores of each rank, equally many, or None (no pinning) if fewer cores are free than
        ranks.
    """
    with contextlib.ExitStack() as locks:
        every = sorted(os.sched_getaffinity(0)) if num_ranks else []
        cores: list[tuple[int, contextlib.ExitStack]] = []
        taken = 0
        for core in every:
            try:
                lock = _lock_core(core)
            except BlockingIOError:
                taken += 1
            except OSError:  # lock files cannot be created here
                pass
            else:
                held = locks.enter_context(contextlib.ExitStack())
                held.callback(os.close, lock)
                cores.append((core, held))
        each = len(cores) // num_ranks if num_ranks else 0
        for _, held in cores[each * num_ranks :]:  # leave the remainder to other jobs
            held.close()
        if taken:
            rest = f"has {each * num_ranks} to itself" if each else "shares them, unpinned"
            note(f"Other jobs have reserved {taken} of {len(every)} cores; this one {rest}.")
        if each:
            own = [core for core, _ in cores]
            yield [tuple(own[rank * each : (rank + 1) * each]) for rank in range(num_ranks)]
        else:
            yield None


def _lock_core(core: int) -> int:
    """Locks a core's lock file. Returns: the descriptor that holds the lock; the file stays.

    Raises:
        BlockingIOError: another job has it.
        OSError: the file cannot be created.
    """
    if not own_folder(temporary()):
        raise PermissionError(f"{temporary()} is not a folder of this user")
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(temporary() / f"core-{core}.lock", flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
