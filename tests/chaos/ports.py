"""Foreign clients connect to every port of a job: it still ends in time and tells the truth.

The job must end with all of its iterations, or with an exit code that reports a failure.
"""

import contextlib
import random
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import psutil

from tests.chaos import odd
from tests.chaos.jobs import Broken, Job, Place
from tests.chaos.strikes import metrics

ITERATIONS, NUM_STEPS, NUM_ENVS = 12, 8, 2
DEADLINE_S = 300.0
ANSWER_S = 1.0
"""A port that does not accept a connection within this time accepts none."""
KEPT, SHORT = 60, 100
LINE_BYTES = 1 << 24
Address = tuple[str, int]


def _talk(address: Address, text: bytes) -> socket.socket:
    stranger = socket.create_connection(address, ANSWER_S)
    with stranger, contextlib.suppress(OSError):  # the job closes it at the first wrong byte
        stranger.sendall(text)
    return stranger


def _all(*texts: bytes) -> Callable[[Address], Iterator[socket.socket]]:
    return lambda address: (_talk(address, text) for text in texts)


def _say_nothing(address: Address) -> Iterator[socket.socket]:
    return (socket.create_connection(address, ANSWER_S) for _ in range(KEPT))


NOISE = random.Random(1)
STRANGERS: dict[str, Callable[[Address], Iterator[socket.socket]]] = {
    "connect and close": _all(*[b""] * SHORT),
    "say nothing": _say_nothing,
    "random bytes": _all(*(NOISE.randbytes(1 + size * size) for size in range(SHORT))),
    "HTTP": _all(*[b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"] * SHORT),
    "16 MB in a line": _all(b"A" * LINE_BYTES),
}


def listening(pid: int) -> set[int]:
    """Returns the ports of a process that accept connections."""
    with contextlib.suppress(psutil.Error):
        connections = psutil.Process(pid).net_connections("tcp")
        return {found.laddr.port for found in connections if found.status == psutil.CONN_LISTEN}
    return set()


TWO_RANKS = ("--policy", "SingleLearnerCoarse", "--workers", "1")
MINDSPORE = ("--policy", "MultipleLearners", "--workers", "2", "--cells", "mindspore")


@dataclass(frozen=True)
class Port:
    """A port of a job, or several of one kind.

    Attributes:
        name: the name in the table.
        kind: the kind of process that has it.
        options: the job's options.
        variables: the job's environment variables.
        starting: True: clients connect as soon as the port exists; False: when the job trains.
    """

    name: str
    kind: str
    options: tuple[str, ...] = TWO_RANKS
    variables: tuple[tuple[str, str], ...] = ()
    starting: bool = False

    def find(self, job: Job) -> set[int]:
        """Returns the port numbers; ranks also hold that of mpiexec."""
        found: dict[str, set[int]] = {self.kind: set(), "mpiexec": set()}
        for pid, kind in job.processes().items():
            if kind in found:
                found[kind] |= listening(pid)
        return found[self.kind] - (found["mpiexec"] if self.kind == "rank" else set())


PORTS = {
    "link": Port("the coordinator's link", "coordinator"),
    "hydra-start": Port("`mpiexec`, while ranks start", "mpiexec", starting=True),
    "hydra": Port("`mpiexec`, in training", "mpiexec"),
    "ucx": Port("UCX's, with `UCX_TLS=self,tcp`", "rank", variables=(("UCX_TLS", "self,tcp"),)),
    "scheduler": Port("MindSpore's scheduler", "scheduler", MINDSPORE),
    "group": Port("MindSpore's group", "rank", MINDSPORE),
}


def gated(place: Place, options: tuple[str, ...], **how: object) -> Job:
    """Starts a job that ends once its folder has the gate."""
    words = ("ppo", *options, "--env", f"{odd.__file__}:Gated", "--stop-return", "nan", "--quiet")
    steps = ("--total-steps", str(ITERATIONS * NUM_STEPS * NUM_ENVS))
    sizes = (f"num_steps={NUM_STEPS}", f"num_envs={NUM_ENVS}", "num_minibatches=1")
    return place.job((*words, *steps, *sizes), "gated", **how)


def open_gate(job: Job) -> None:
    """Lets a job end."""
    (job.folder / odd.GATE).touch()


def visited(place: Place, port: Port, strangers: str) -> str:
    """Connects foreign clients to a port of a job. Returns: its outcome. Raises: Broken."""
    limits = ("--max-restarts", "3", "--timeout", "15", "--start-timeout", "90")
    job = gated(place, (*port.options, *limits), variables=dict(port.variables))
    if port.starting:
        while not port.find(job):
            if job.process.poll() is not None:
                raise Broken(f"it ended before it had the port: {job.err[-500:]}")
    else:
        job.train()
    met: list[socket.socket] = []
    try:
        for number in port.find(job):
            with contextlib.suppress(OSError):  # the job has ended, or refuses connections
                met.extend(STRANGERS[strangers](("127.0.0.1", number)))
        open_gate(job)
        code = job.wait(DEADLINE_S)
    finally:
        for stranger in met:
            stranger.close()
    return judged(code, max(metrics([job.run]), default=0), job.err, bool(met))


def judged(code: int, done: int, err: str, met: bool) -> str:
    """Judges the outcome of a job. Returns: it in words. Raises: Broken.

    Args:
        code: its exit code.
        done: the number of its iterations.
        err: its output on stderr.
        met: True if the port accepted a connection.
    """
    causes = [line for line in re.findall(r"^msrl: (.*)", err, re.M) if "restarting" not in line]
    cause = causes[0] if causes else ""
    if code == 0 and done != ITERATIONS:
        raise Broken(f"exit code 0 after {done} iterations")
    if code < 0 or "Traceback (most recent call last):\n  File" in err.partition("msrl: ")[0]:
        raise Broken(f"exit code {code}, {err.strip().splitlines()[-1:]}")
    if code:
        return f"ends with exit code {code}: {cause}"
    if causes:
        return f"fails and resumes: {cause}"
    return "nothing" if met else "not heard"


CASES: dict[str, Callable[[Place], str]] = {
    f"{port.name}: {strangers}": partial(visited, port=port, strangers=strangers)
    for port in PORTS.values()
    for strangers in STRANGERS
}
