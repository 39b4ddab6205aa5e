"""A worker: one rank of a job, under mpiexec, in the coordinator or as a thread."""

import contextlib
import ctypes
import os
import platform
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from mindspore_rl.communication.communicator import Communicator
from mindspore_rl.communication.group import Group, HostGroup, debug_group, mindspore_group
from mindspore_rl.communication.inproc import InprocHub
from mindspore_rl.communication.link import Link
from mindspore_rl.communication.mpi import OWN_CORE_SPIN_S, MpiCommunicator, is_mpi_error
from mindspore_rl.errors import (
    EnvironmentFailure,
    MsrlError,
    NumericsError,
    StorageError,
    shortened,
    text_of,
)
from mindspore_rl.plan.plan import Plan, load_plan
from mindspore_rl.platform import gpu, interpreter
from mindspore_rl.platform.user_modules import passing_module
from mindspore_rl.programs import load_trainer, seeded
from mindspore_rl.runtime.heartbeat import Stamps, sent
from mindspore_rl.runtime.profile_recorder import COLLECTIVE, FOLDER, Profile, ProfiledCommunicator
from mindspore_rl.runtime.rank.episodes import Goal
from mindspore_rl.runtime.rank.fragment_runtime import FragmentRuntime
from mindspore_rl.runtime.rank.rank import Rank
from mindspore_rl.runtime.rank.worker_settings import WorkerSettings, worker_settings


def run_worker(
    plan: Plan,
    run_dir: Path,
    number: int,
    link: Link,
    comm: Communicator | None = None,
    group: Any = None,
    threads: int = 1,
    kind: type[FragmentRuntime] | None = None,
    goal: Goal | None = None,
) -> None:
    """Runs a rank to its end; reports a failure to the coordinator and raises it."""
    rank = runtime = None
    stack = contextlib.ExitStack()
    try:
        stamps = Stamps(None if plan.hosts else run_dir, plan.num_ranks)
        stack.callback(stamps.close)
        profile = None
        if plan.profile:
            profile = Profile(run_dir / FOLDER / f"{number:04d}.npz", plan.profile)
            comm = ProfiledCommunicator(comm, profile) if comm else None
            if isinstance(group, HostGroup):
                group.around = partial(profile.call, COLLECTIVE)
        rank = Rank(plan, run_dir, number, comm, link, stamps, profile, goal)
        stack.callback(rank.background.close)
        if plan.hosts:
            stack.enter_context(sent(stamps, number, link))
        if rank.fragment.needs_tensors:
            from mindspore_rl.platform import mindspore_device  # noqa: PLC0415  (imports MindSpore)

            os.environ["MS_OM_PATH"] = str(run_dir / "mindspore")  # a failed compilation's files
            mindspore_device.use(plan.device, compiled=plan.compiled)
            load_trainer(plan.algorithm, plan.config, rank.spec)
        runtime = (kind or FragmentRuntime)(rank, group, threads)
        path = run_dir / "fragments" / rank.fragment.file
        name = f"fragment_{abs(hash((str(path), number)))}_{path.stem}"
        stack.enter_context(passing_module(name, path)).run(runtime)
        runtime.close()
        link.send(
            "finished",
            rank=number,
            iteration=rank.iteration,
            iterations_here=runtime.iterations_here,
            traffic=runtime.traffic(),
        )
    except BaseException as error:
        _report(link, number, error, rank if runtime else None)
        raise
    finally:
        stack.close()


def _report(link: Link, number: int, error: BaseException, rank: Rank | None = None) -> None:
    """Reports to the coordinator the error that ends a rank; `rank` is None before it starts."""
    if isinstance(error, InterruptedError):
        return  # another rank has failed, or the coordinator is gone
    failure = isinstance(error, (EnvironmentFailure, StorageError))
    theirs = error.__cause__ is not None  # their code raised, and its frames say where
    is_all_said = isinstance(error, StorageError) or (failure and not theirs)
    with contextlib.suppress(OSError):
        link.send(
            "error",
            rank=number,
            iteration=rank.iteration if rank else -1,
            stage=rank.stage if rank else "starting",
            message=shortened(str(error) if isinstance(error, MsrlError) else _described(error)),
            traceback="" if is_all_said else shortened(traceback.format_exc()),
            mistake=isinstance(error, MsrlError) and not failure,
            symptom=isinstance(error, NumericsError),
            echo=is_mpi_error(error),
        )


def _described(error: BaseException) -> str:
    """Returns an error's type and text; of MindSpore's errors only the first section."""
    text, stack, _ = text_of(error).partition("- C++ Call Stack")
    if stack:
        lines = [line.removeprefix("- ").strip() for line in text.splitlines()]
        text = " ".join(line for line in lines if line.strip("-"))
    return f"{type(error).__name__}: {text}"


def run_inproc(plan: Plan, run_dir: Path, links: list[Link]) -> None:
    """Runs all ranks as threads of this process, one at a time, uncompiled."""
    hub = InprocHub(plan.num_ranks)
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        comm = hub.communicator(rank)
        fragment, _ = plan.fragment_of(rank)
        with hub.baton:
            try:
                run_worker(
                    plan,
                    run_dir,
                    rank,
                    links[rank],
                    comm,
                    debug_group(partial(comm.all_reduce, fragment.name, len(fragment.shares))),
                )
            except BaseException as error:  # noqa: BLE001  (raised again below)
                errors.append(error)
                hub.failed = True
                hub.baton.notify_all()

    threads = [
        threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(plan.num_ranks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def main(kind: type[FragmentRuntime] | None = None, join: Callable[..., Any] | None = None) -> None:
    """Entry point of a worker process under mpiexec.

    Args:
        kind: of the fragment's runtime, to replace `FragmentRuntime`.
        join: replaces `_join_group`, which forms the group of the rank's fragment.
    """
    interpreter.look_last()
    interpreter.hasten_mindspore()
    end_with_parent()
    settings = worker_settings()
    plan = load_plan(settings.run_dir)
    comm = MpiCommunicator()
    link = Link.connect(*settings.coordinator, settings.token)
    host = plan.hosts[comm.rank] if plan.hosts else platform.node()
    pids = {"pid": os.getpid(), "proxy": os.getppid()}
    link.send("hello", rank=comm.rank, host=host, **pids)
    _end_with_coordinator(link)
    try:
        try:
            if plan.device == "GPU" and (place := plan.gpu_of(comm.rank)):
                gpu.take(*place)
            group = (join or _join_group)(plan, comm, settings, link)
        except Exception as error:
            _report(link, comm.rank, error)
            raise
        if settings.cores:
            os.sched_setaffinity(0, settings.cores[comm.rank])
            comm.spin_s = OWN_CORE_SPIN_S
        threads = len(settings.cores[comm.rank]) if settings.cores else 1
        with seeded(plan.seed, comm.rank):  # for environments that draw from them
            run_worker(plan, settings.run_dir, comm.rank, link, comm, group, threads, kind)
    except BaseException:  # noqa: BLE001
        print(shortened(traceback.format_exc()), file=sys.stderr, flush=True)
        _exit()


def _join_group(
    plan: Plan, comm: MpiCommunicator, settings: WorkerSettings, link: Link
) -> Group | None:
    """Forms the group of the rank's fragment, if its cells hold collectives.

    MindSpore reads its settings at import, so they are set first; cores are pinned later.
    """
    rank, (own, _) = comm.rank, plan.fragment_of(comm.rank)
    if rank not in plan.group_ranks:
        if not own.collectives:
            return None

        def waiting() -> None:
            if link.closed:
                raise InterruptedError("the coordinator is gone")

        return HostGroup(partial(comm.channel, own.ranks, waiting))
    assert settings.scheduler is not None
    host, port = settings.scheduler
    os.environ.update(
        MS_ROLE="MS_WORKER",
        MS_WORKER_NUM=str(len(plan.group_ranks)),
        MS_SCHED_HOST=host,
        MS_SCHED_PORT=str(port),
        MS_NODE_ID=str(plan.group_ranks.index(rank)),
    )
    from mindspore import communication  # noqa: PLC0415

    from mindspore_rl.platform import mindspore_device  # noqa: PLC0415  (imports MindSpore)

    mindspore_device.use(plan.device, compiled=plan.compiled)
    communication.init()
    fragments = [f for f in plan.fragments if f.collectives]
    if len(fragments) == 1:
        return mindspore_group(communication.GlobalComm.WORLD_COMM_GROUP, plan.device)
    for fragment in fragments:
        members = [plan.group_ranks.index(r) for r in fragment.ranks]
        if fragment is own:
            communication.create_group(fragment.name, members)
    return mindspore_group(own.name, plan.device)


def end_with_parent() -> None:
    """Makes the kernel kill this process when its launcher ends, even if that is killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _exit() -> NoReturn:
    """Ends this process at once: MPI's own shutdown would wait for a peer that may be gone."""
    os._exit(1)


def _end_with_coordinator(link: Link) -> None:
    """Ends this process when the coordinator closes its end of the link, whatever it is doing."""
    poller = select.poll()
    poller.register(link.connection, select.POLLRDHUP)

    def watch() -> None:
        poller.poll()
        _exit()

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
