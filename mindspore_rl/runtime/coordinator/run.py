"""Runs a job: starts its ranks, watches them, records what they report, and ends them.

First failure wins. The coordinator takes no part in the training: it only asks the leader (see
`Plan.leader`) for a checkpoint or for an end, at an iteration boundary.
"""

import _thread
import contextlib
import errno
import faulthandler
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from mindspore_rl.communication.link import Link
from mindspore_rl.errors import JobFailure, MsrlError
from mindspore_rl.plan.deployment import Deployment
from mindspore_rl.plan.plan import Plan
from mindspore_rl.plan.traffic import iterations_done, write
from mindspore_rl.platform.held_signals import INTERRUPTED_EXIT
from mindspore_rl.programs import seeded
from mindspore_rl.runtime import checkpoint
from mindspore_rl.runtime.coordinator.cleanup import CLOSED, CLOSED_EXIT, Orphans, OwnProcess
from mindspore_rl.runtime.coordinator.cores import pin_cores
from mindspore_rl.runtime.coordinator.evaluator import Evaluator
from mindspore_rl.runtime.coordinator.event_loop import Peer, Watch
from mindspore_rl.runtime.coordinator.failures import Stalled
from mindspore_rl.runtime.coordinator.interruption import Interruption
from mindspore_rl.runtime.coordinator.launch import WORKERS_LOG, Commands, JobProcesses
from mindspore_rl.runtime.coordinator.metrics import Metrics
from mindspore_rl.runtime.coordinator.state_machine import JobOptions, Outcome
from mindspore_rl.runtime.heartbeat import Stamps
from mindspore_rl.runtime.rank.episodes import Goal

BACKLOG = 64
"""Connections beside the ranks' that may be pending without a rank having to retry."""


def run_job(
    plan: Plan, run_dir: Path, options: JobOptions, commands: Commands | None = None
) -> Outcome:
    """Runs a plan to its end; no process of the job is left, whatever the outcome.

    Args:
        plan: the job.
        run_dir: holds the job's `plan.json` and generated fragments.
        options: how the job is run and when it ends.
        commands: started instead of the workers and the scheduler (tests).

    Returns: how the job ended; an interrupted job is no failure.

    Raises:
        JobFailure: a rank failed, died or made no progress.
        MsrlError: the job cannot be started.
        Exception: raised by `options.on_iteration`.
    """
    with contextlib.ExitStack() as stack:
        interruption = stack.enter_context(Interruption())
        begun = options.start_steps, options.start_steps // plan.steps_per_iteration
        shown = (options.total_steps, options.progress, *begun)
        job = {
            "algorithm": plan.algorithm.get("name", ""),
            "policy": plan.policy,
            "workers": plan.workers,
        }
        metrics = Metrics(run_dir, *shown, about=job | plan.config, wandb=options.wandb)
        stack.callback(metrics.close)
        stack.callback(checkpoint.remove_unfinished, run_dir)
        stamps = Stamps(run_dir, plan.num_ranks, create=True)
        stack.callback(stamps.close)
        here, evaluator = plan.in_one_process, None
        if options.eval_every:  # before the job's processes, which all end before it
            evaluator = stack.enter_context(Evaluator(run_dir, options.eval_episodes))
        watch = Watch(plan, options, metrics, stamps, interruption, run_dir, here, evaluator)
        stack.callback(watch.close)
        try:
            if here:
                with OwnProcess() as own:
                    _run_here(watch, run_dir, own)
            else:
                _run_ranks(watch, run_dir, commands or Commands())
        except JobFailure as failure:
            failure.interrupted = interruption.poll() > 0
            raise
        if watch.error is not None:
            raise watch.error
        if len(watch.monitor.traffic) == plan.num_ranks:
            done = {rank: count for rank, (count, _) in watch.monitor.traffic.items()}
            counts = [found for _, found in watch.monitor.traffic.values()]
            write(plan, run_dir, iterations_done(plan, done), counts)
        outcome = watch.outcome()
        watch.evaluate_rest()
        return outcome


def _run_ranks(watch: Watch, run_dir: Path, commands: Commands) -> None:
    """Runs the ranks under mpiexec."""
    plan, deployment = watch.plan, watch.options.deployment
    pinned = 0 if plan.hosts or plan.device == "GPU" else plan.num_ranks
    with (
        pin_cores(pinned, watch.metrics.note) as cores,
        _listener(plan, deployment) as listener,
        Orphans() as orphans,
        JobProcesses(plan, run_dir, commands, deployment, orphans) as processes,
    ):  # ended first
        watch.listen(listener, processes)
        processes.start(listener.getsockname()[1], cores)
        try:
            while not watch.step():
                pass
        except KeyboardInterrupt:
            return
        processes.wait(5.0)  # MPI's own shutdown


def _listener(plan: Plan, deployment: Deployment) -> socket.socket:
    """Opens the socket that ranks connect to. Raises: MsrlError."""
    try:
        return socket.create_server((deployment.address, 0), backlog=plan.num_ranks + BACKLOG)
    except OSError as error:
        raise MsrlError(
            f"cannot listen on {deployment.address} ({error.strerror or error}); expected an "
            "address of this machine: start `msrl train` on the first host of the deployment, or "
            "put this machine first in its file"
        ) from error


def _watch(
    watch: Watch, own: OwnProcess, link: Link, ended: threading.Event, failures: list[Exception]
) -> None:
    """Runs the monitor of ranks in this process.

    Args:
        watch: the event loop.
        own: ends the processes that the job has started.
        link: to the leader.
        ended: set when the ranks have ended.
        failures: collects the first failure, to be raised in the main thread.
    """
    try:
        while not watch.step():
            if said := own.look():
                watch.metrics.note(said)
    except Stalled as failure:
        # A thread that hangs in a cell or in an environment ends only with its process. (A hang
        # that holds the interpreter's lock cannot be ended even so.)
        _end(watch, own, str(failure), failure.exit_code)
    except KeyboardInterrupt:
        _thread.interrupt_main()
        if not ended.wait(2.0):
            _end(watch, own, "Interrupted.", INTERRUPTED_EXIT)
    except Exception as error:  # noqa: BLE001  (raised below, in the main thread)
        _end_if_closed(error, watch, own)
        failures.append(error)
        with contextlib.suppress(OSError):
            link.send("stop")
        link.close()


def _end_if_closed(error: BaseException, watch: Watch, own: OwnProcess) -> None:
    """Ends this process if its descriptors were closed: its state can no longer be trusted."""
    if isinstance(error, OSError) and error.errno == errno.EBADF:
        failure = watch.died(watch.plan.leader, f": {CLOSED}")
        _end(watch, own, str(failure), failure.exit_code)


def _end(watch: Watch, own: OwnProcess, text: str, exit_code: int) -> NoReturn:
    """Ends this process, whatever its main thread does, even if nothing can be written any more."""
    told = False
    try:
        try:
            told = watch.options.tell("ends", exit_code)
            if told:  # else the supervisor prints it
                watch.metrics.note(text)
            watch.metrics.close()
        finally:
            own.end()
    finally:
        os._exit(exit_code if told else CLOSED_EXIT)


def _run_here(watch: Watch, run_dir: Path, own: OwnProcess) -> None:
    """Runs the ranks in this process, and the event loop in a thread of its own.

    A single rank runs in this thread; several uncompiled ones get a thread each.
    """
    from mindspore_rl.runtime.rank.worker import run_inproc, run_worker  # noqa: PLC0415

    pairs = [tuple(map(Link, socket.socketpair())) for _ in range(watch.plan.num_ranks)]
    leader = watch.plan.leader
    ours, theirs = pairs[leader]
    for rank, (link, _) in enumerate(pairs):
        watch.add(Peer(link, rank))
    ended = threading.Event()
    failures: list[Exception] = []

    arguments = (watch, own, ours, ended, failures)
    watcher = threading.Thread(target=_watch, args=arguments, name="monitor")
    watcher.start()
    try:
        seed = watch.plan.seed
        with _crashes_told(run_dir), seeded(seed), watch.interruption.raised_at_second():
            if len(pairs) == 1:
                on_cpu = watch.plan.device == "CPU" and watch.plan.compiled
                # The core is only reserved; this process is not pinned.
                with pin_cores(int(on_cpu), watch.metrics.note) as cores:
                    threads = len(cores[0]) if cores else 1
                    # A command would come some iterations late, never after the same one.
                    stop = None if watch.options.eval_every else watch.options.stop_return
                    goal = None if stop is None else Goal(stop)
                    run_worker(watch.plan, run_dir, leader, theirs, threads=threads, goal=goal)
            else:
                run_inproc(watch.plan, run_dir, [link for _, link in pairs])
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and watch.interruption.poll():
            return  # without a signal an environment or an algorithm has raised it
        _end_if_closed(error, watch, own)
        for _, link in pairs:  # a rank reports its error over its link
            link.close()
        watcher.join()
        if failures:
            raise failures[0] from error
        raise watch.died(leader, f": {type(error).__name__}: {error}") from error
    finally:
        ended.set()
        for _, link in pairs:
            link.close()
        watcher.join()
    if failures:
        raise failures[0]


@contextlib.contextmanager
def _crashes_told(run_dir: Path) -> Iterator[None]:
    """A context in which a crash in native code leaves a traceback in the log."""
    if faulthandler.is_enabled():  # its owner has chosen another file
        yield
        return
    with (run_dir / WORKERS_LOG).open("a") as log:
        faulthandler.enable(log)
        try:
            yield
        finally:
            faulthandler.disable()
