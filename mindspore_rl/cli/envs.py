"""`msrl envs`: lists environments, or checks one."""

import argparse
import sys
import time

from mindspore_rl.environments import registry
from mindspore_rl.errors import ConfigError, install

TOLD_EVERY_S = 5.0


def run(args: argparse.Namespace) -> int:
    """Runs `msrl envs`."""
    if args.action == "list":
        return _list(args.name or "")
    if not args.name:
        raise ConfigError("msrl envs check needs the name of an environment")
    return _check(args.name)


def _list(part: str) -> int:
    """Lists the environments with `part` in their names, in any case."""
    accepted, missing = registry.sorted_names(part)
    if not accepted and not missing:
        raise ConfigError(f"no environment has {part!r} in its name; see msrl envs list")
    print("\n".join(accepted))
    for extra, names in missing.items():
        print(f"\nAlso accepted after this, {install(extra)}", *names, sep="\n  ", file=sys.stderr)
    return 0


def _check(name: str) -> int:
    from mindspore_rl.environments.check import check  # noqa: PLC0415

    told = time.monotonic()

    def tell(done: int, most: int) -> None:
        nonlocal told
        if time.monotonic() - told >= TOLD_EVERY_S:
            told = time.monotonic()
            print(f"{name}: step {done:,} of at most {most:,}", file=sys.stderr, flush=True)

    findings = check(name, tell)
    for finding in findings:
        print(finding)
    if findings:
        print(f"{name}: {len(findings)} finding{'s' * (len(findings) > 1)}")
        return 1
    if notes := registry.spec(name).notes:
        print(f"{name}: {notes}")
    print(f"{name}: conforms")
    return 0
