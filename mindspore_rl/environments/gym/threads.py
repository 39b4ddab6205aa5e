"""How many threads step the environments of a rank: as many as they declare, or as is faster.

A step that computes without Python's lock still takes and returns it, which can cost more than the
other cores gain: on two cores, a step of eight HalfCheetahs took 0.39 ms on one thread and 0.65 ms
on two. The results of a step do not depend on the choice.
"""

from typing import Any

from mindspore_rl.errors import EnvironmentFailure


def declared(name: str, env: Any) -> int:
    """Returns the number of threads that may step environments, by their `metadata`.

    Returns: 0: one; 1: as many as the rank has cores if that is faster; n: at least n.
    """
    found = (getattr(env, "metadata", None) or {}).get("concurrent", False)
    if not isinstance(found, (bool, int)) or found < 0:
        raise EnvironmentFailure(
            f"environment {name!r} has metadata['concurrent'] = {found!r}, expected True (stepped "
            "on as many threads as the rank has cores, if that is faster) or a number of threads "
            "at least"
        )
    return int(found)
