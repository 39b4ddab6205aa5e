"""Foreign processes cannot affect a job by its ports; on one host, the ports are on loopback."""

import contextlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mindspore_rl.plan.deployment import Deployment, find_mpiexec
from mindspore_rl.runtime.coordinator import launch
from mindspore_rl.runtime.coordinator.messages import FIELDS
from tests.chaos import ports
from tests.chaos.jobs import Broken, Job, Place, read

pytestmark = [pytest.mark.multiprocess]
SS = shutil.which("ss", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
OUTSIDE = {("mpiexec", "LISTEN", "0.0.0.0")}
"""Sockets of a job on one host that are not on loopback: Hydra cannot bind its own."""


def trains(place: Place, options: tuple[str, ...]) -> Job:
    """Returns a job that trains, and waits at its gate."""
    job = ports.gated(place, options)
    job.train()
    return job


def of_job(job: Job) -> dict[int, dict[str, str]]:
    """Returns the processes of a job and their environments."""
    found = {}
    for pid in job.processes():
        with contextlib.suppress(psutil.Error):
            found[pid] = psutil.Process(pid).environ()
    return found


# ---- the coordinator's link ----------------------------------------------------------------------


def near(token: str, rng: random.Random) -> bytes:
    """Returns first lines that differ a little from the token."""
    place = rng.randrange(len(token))
    changed = "0" if token[place] != "0" else "1"
    guesses = [
        "",
        token[:place],  # without the end of the line
        token[:place] + "\n",
        token[:place] + changed + token[place + 1 :] + "\n",
        token + changed + "\n",
        f" {token}\n",
        f"{rng.getrandbits(128):032x}\n",
        json.dumps({"kind": "hello", "rank": 0, "token": token}) + "\n",
    ]
    return rng.choice(guesses).encode()


def forged(kind: str, rng: random.Random) -> bytes:
    """Returns a message in the form of a rank's."""
    fields = {"iteration": rng.choice([0, 5, 12, 10**6]), "rank": rng.choice([0, 1, -1, 10**6])}
    fields |= {"iterations_here": 12, "traffic": {}, "pid": 1, "host": "here", "stage": "Python"}
    fields |= {"message": "pay here", "traceback": "", "mistake": True, "note": "n", "path": "/"}
    fields |= {"env_steps": 10**6, "episodes": [[1e6, 1]] * 100, "metrics": {"loss": 7.0}}
    return json.dumps({"kind": kind, **fields, "age_s": 0.0}).encode() + b"\n"


def malformed(rng: random.Random) -> bytes:
    """Returns invalid messages."""
    choices = [
        lambda: rng.randbytes(rng.randrange(2000)),
        lambda: b"[" * 200_000 + b"\n",
        lambda: b'{"a":' * 50_000,
        lambda: b"A" * rng.choice([100, 1 << 16, 1 << 20]),
        lambda: forged("hello", rng)[: rng.randrange(40)],
        lambda: b"\n" * 1000,
        lambda: b"\xff\xfe\0\n",
        lambda: b'{"kind": "finished", "rank": 1e400, "iteration": NaN}\n',
    ]
    return rng.choice(choices)()


def answer_to(address: tuple[str, int], text: bytes) -> bytes:
    """Returns everything received until the other end closes."""
    with socket.create_connection(address, 60.0) as stranger:
        with contextlib.suppress(OSError):  # the job closes it at the first wrong byte
            stranger.sendall(text)
            stranger.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            return stranger.recv(1)
    return b""


def forgeries(token: str, number: int) -> Iterator[bytes]:
    """Returns the texts of some foreign clients; some say nothing."""
    rng = random.Random(number)
    kinds = [*FIELDS, "stop"]
    for i in range(number):
        said = malformed(rng) if i % 2 else forged("hello", rng) + forged(rng.choice(kinds), rng)
        yield b"" if i % 50 == 0 else near(token, rng) + said


def result_of(job: Job) -> tuple[list[dict], dict[str, bytes]]:
    """Returns a job's result: its metrics without times, and the arrays of its last checkpoint."""
    ports.open_gate(job)
    job.ended_well(ports.ITERATIONS)
    assert "msrl:" not in job.err
    kept = ("iteration", "env_steps", "mean_return", "mean_length", "values")
    lines = map(json.loads, read(job.run / "metrics.jsonl").splitlines())
    lines = [{key: line.get(key) for key in kept} for line in lines]
    assert [line["iteration"] for line in lines] == list(range(1, ports.ITERATIONS + 1))
    return lines, {name: array.tobytes() for name, array in job.arrays().items()}


@pytest.mark.slow
@pytest.mark.parametrize("number", [200, 10_000])
def test_forged_messages_change_nothing(place, number):
    """A job's exit code, metrics and checkpoint do not change; no client gets an answer."""
    job = trains(place, ports.TWO_RANKS)
    rank, _ = (variables for variables in of_job(job).values() if "PMI_RANK" in variables)
    host, port = rank["MSRL_COORDINATOR"].split(":")
    token = json.loads((job.run / "secrets.json").read_text())["MSRL_TOKEN"]
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(socket.create_connection((host, int(port)), 60.0))
        for text in forgeries(token, number):
            assert answer_to((host, int(port)), text) == b""
        assert job.process.poll() is None
        besieged = result_of(job)
    assert besieged == result_of(trains(place, ports.TWO_RANKS))


# ---- what one host shows to others ---------------------------------------------------------------


def sockets(pids: set[int]) -> list[tuple[str, str, str]]:
    """Returns program, state and local address of every socket of some processes, from `ss`."""
    found = []
    asked = subprocess.run([SS, "-Htuanp"], check=True, capture_output=True, text=True)
    for line in asked.stdout.splitlines():
        owners = dict(re.findall(r'\("([^"]+)",pid=(\d+)', line))
        if pids & {int(pid) for pid in re.findall(r"pid=(\d+)", line)}:
            _, state, _, _, local, *_ = line.split()
            program = "mpiexec" if "mpiexec" in owners else "+".join(sorted(owners))
            found.append((program, state, local))
    return found


def on_loopback(local: str) -> bool:
    return local.startswith(("127.", "[::1]:", "[::ffff:127."))


def slow(*options: str):
    return pytest.param(options, marks=pytest.mark.slow)


@pytest.mark.skipif(SS is None, reason="no `ss` (iproute2) here")
@pytest.mark.parametrize(
    "options",
    [
        ports.TWO_RANKS,
        slow("--policy", "SingleLearnerFine", "--workers", "2"),
        slow("--policy", "Environments", "--workers", "2"),
        slow("--policy", "Central", "--workers", "2"),
        slow("--policy", "MultipleLearners", "--workers", "2"),
        slow("--policy", "Central", "--workers", "2", "--schedule", "order=asynchronous"),
        slow(*ports.MINDSPORE),
    ],
    ids=lambda options: "-".join(options[1::2]),
)
def test_no_socket_of_one_host_leaves_loopback(place, options):
    job = trains(place, options)
    found = sockets(set(job.processes()))
    outside = [entry for entry in found if not on_loopback(entry[2])]
    assert {(program, state, local.rpartition(":")[0]) for program, state, local in outside} == (
        OUTSIDE
    )
    assert len(outside) == len(OUTSIDE)
    assert [entry for entry in found if entry[1] == "ESTAB"]  # the ranks' links, as `ss` shows them
    # The exception no longer accepts connections, even from this machine.
    port = int(outside[0][2].rpartition(":")[2])
    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", port), 1.0)
    result_of(job)


RANK = """\
import os, time
from mpi4py import MPI
comm = MPI.COMM_WORLD
time.sleep(0.5)
pids = comm.allgather(os.getpid())
if comm.rank == 0:
    rows = [line.split() for line in open("/proc/sysvipc/shm")][1:]
    modes = {row[2][-3:] for row in rows if int(row[4]) in pids}
    text = f"{comm.size} {sorted(modes)} {os.environ.get('LD_PRELOAD')} {os.environ['OWN']}\\n"
    os.write(1, text.encode())  # in one piece, for Hydra names the rank before each
comm.Barrier()
"""


def poked(environment: dict[str, str], folder: Path) -> tuple[int, str, int]:
    """Starts two ranks and connects to their mpiexec. Returns: exit code, output, connections."""
    command = [find_mpiexec(), *launch.mpi_options(Deployment(), (), folder), "-n", "2"]
    heard = 0
    with subprocess.Popen(
        [*command, sys.executable, "-c", RANK],
        env={**environment, "OWN": "as it is", "UCX_TLS": "self,sysv"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as job:
        while job.poll() is None:
            for port in ports.listening(job.pid):
                with contextlib.suppress(OSError):
                    stranger = socket.create_connection(("127.0.0.1", port), 0.3)
                    heard += 1
                    with stranger:
                        stranger.sendall(b"HYD\0" + bytes(8))
        return job.returncode, job.communicate()[0], heard


def test_what_a_stranger_says_to_mpiexec_while_ranks_start_is_not_heard(tmp_path):
    users = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    environment = launch.guarded(users)
    code, output, heard = poked(environment, tmp_path)
    assert (code, output, heard) == (0, "[0] 2 ['600'] None as it is\n", 0)
    assert launch.guarded({"LD_PRELOAD": "x.so"})["LD_PRELOAD"] == (
        f"{environment['LD_PRELOAD']}:x.so"
    )


# ---- the other ports -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ports.PORTS)
def test_a_job_tells_the_truth_whatever_comes_at_its_ports(place, name):
    came = ports.visited(place, ports.PORTS[name], "random bytes")
    assert came == {"link": "nothing", "hydra": "not heard"}.get(name, came)


def test_an_end_that_lies_is_seen():
    all_of_them, failed = ports.ITERATIONS, "msrl: rank 1 died\n"
    resumed = f"{failed}msrl: restarting from x"
    for code, done, err, came in [
        (0, all_of_them, "", "nothing"),
        (0, all_of_them, resumed, "fails and resumes: rank 1 died"),
        (1, 3, failed, "ends with exit code 1: rank 1 died"),
    ]:
        assert ports.judged(code, done, err, True) == came
    for code, done in ((0, all_of_them - 1), (-9, 3)):
        with pytest.raises(Broken, match=f"exit code {code}"):
            ports.judged(code, done, "", True)
