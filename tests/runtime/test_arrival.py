"""The asynchronous parameter server, with workers whose leases take given times."""

import heapq
import queue
import random
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from mindspore_rl.errors import MsrlError
from mindspore_rl.jobs import training
from mindspore_rl.runtime.arrivals_log import ARRIVALS_FILE, append, begin, read_log
from mindspore_rl.runtime.coordinator.reports import AsTheyCome, InStep
from mindspore_rl.runtime.rank.batch_server import BatchServer
from mindspore_rl.runtime.rank.leases import Tickets
from mindspore_rl.runtime.rank.messenger import CHECKPOINT, CONTINUE, PAUSE, STOP
from mindspore_rl.runtime.rank.parameter_server import Server

STEPS = 10
"""Environment steps of one worker's iteration."""


@pytest.mark.parametrize("bound", [0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_bound_holds_in_whatever_order_workers_finish(workers, bound):
    tickets, draw, worst = Tickets(bound), random.Random(7), 0
    for _ in range(3000):
        idle = [w for w in range(workers) if w not in tickets.read]
        assert tickets.read or tickets.free(), "nobody is at work and nobody may begin"
        if idle and tickets.free() and draw.random() < 0.6:
            tickets.begin(draw.choice(idle))
        elif tickets.read:
            # The oldest rarely comes first: as stale as the bound permits.
            busy = list(tickets.read)
            worker = busy[-1] if draw.random() < 0.9 else busy[0]
            worst = max(worst, tickets.staleness(worker))
            tickets.end(worker, updated=True)
    assert worst == (bound if workers > 1 else 0)


class Wires:
    """The edges of a simulation: `forth` to the server, parameters `back`."""

    def __init__(self, run):
        self.run = run
        self.edges = {
            name: SimpleNamespace(tag=3, message=SimpleNamespace(parameters=parameters))
            for name, parameters in (("forth", ""), ("back", "all"))
        }

    def send(self, name, values, worker):
        run = self.run
        run.read[worker] = run.version
        heapq.heappush(run.mail, (run.time + run.durations[worker], worker))

    def receive(self, name, worker):
        self.received(name, worker)
        return (None,)

    def received(self, name, worker):
        del self.run.here[worker]
        return worker, self.run.read[worker]

    def batch(self, name, messages):
        return messages


class Simulation:
    """The rank of a server whose workers' leases take `durations` time units.

    Attributes:
        staleness: of each update, with its worker, counted here and not by the server.
    """

    def __init__(self, durations, bound, iterations, drop_stale=False, messages=1, commands=()):
        self.durations, self.messages = durations, messages
        self._make(durations, bound, iterations, drop_stale, commands)
        self.server = Server(*self._given)

    def _make(self, durations, bound, iterations, drop_stale, commands, gather=0, consumers=1):
        count = len(durations)
        self.replica, self.env_indices = 0, range(count)
        self.fragment = SimpleNamespace(ranks=range(count, count + consumers))
        shares = [(i, i + 1) for i in range(count)]
        worker = SimpleNamespace(name="worker", ranks=range(count), shares=shares)
        bounds = {"staleness": bound, "drop_stale": drop_stale, "gather": gather}
        ways = (("forth", "", "worker"), ("back", "all", "server"))
        self.plan = SimpleNamespace(
            arrivals=SimpleNamespace(sender="worker", consumers=consumers, **bounds),
            fragments=[worker],
            messages=[SimpleNamespace(name=n, parameters=p, source=s) for n, p, s in ways],
            steps_per_env=STEPS,
            steps_per_update=gather * consumers * STEPS,
            last_step=iterations * STEPS,
        )
        self.messenger, self.exchange = self, Wires(self)
        self.env_steps, self.version, self.time = 0, 0, 0.0
        self.read, self.mail, self.here = {}, [], {}
        self.words, self.staleness, self.saves, self.metrics = [], [], [], []
        self.commands = list(commands)
        self.stages = SimpleNamespace(edge=lambda name: 0)
        iterations = np.zeros(count, int)
        self._given = (self, self.exchange, iterations, self.serve, self.save, self.count_steps)

    def run(self):
        for worker in self.server:
            self.server.fire(worker)
        return self

    def serve(self, iteration):
        for _ in range(self.messages):
            values = yield "forth"
            worker = self.server.current
            if len(values) == 1 or values[1]:
                self.staleness.append((worker, self.version - self.read[worker]))
                self.version += 1
            self.server.send("back", ())

    # ---- the server's calls of its rank ----------------------------------------------------

    def first_of(self, expected, stage):
        while not any(rank in self.here for rank, _ in expected):
            here, worker = heapq.heappop(self.mail)
            self.time = max(self.time, here)
            self.here[worker] = True
        return next(i for i, (rank, _) in enumerate(expected) if rank in self.here)

    def send(self, rank, tag, data):
        self.words.append((rank, int(data.view(np.int64)[0])))

    def count_steps(self, steps, metrics):
        self.env_steps += steps
        self.metrics.append(metrics())

    def poll_command(self):
        if self.commands and self.env_steps >= self.commands[0][0]:
            return self.commands.pop(0)[1]
        return CONTINUE

    def save(self):
        assert not self.mail
        assert not self.here
        self.saves.append(self.env_steps)


LEARN_S = 2.0


class Batches(Simulation):
    """The rank of a learner that takes the rows of `gather` workers for an update.

    Attributes:
        taken: the worker and its staleness, for each worker of each update.
    """

    def __init__(self, folder, durations, bound, iterations, gather, commands=(), kept=None):
        self.durations, self.taken, self.run_dir, self.kept = durations, [], folder, kept
        self._make(durations, bound, iterations, False, commands, gather)
        self.server = BatchServer(kept, *self._given)

    def serve(self, update):
        assert update == self.version
        messages = yield "forth"
        self.taken.append([(worker, update - read) for worker, read in messages])
        for place in self.kept.sources if self.kept else ():
            self.kept.inserted[place] += 1
        self.time += LEARN_S
        self.version += 1
        self.server.send("back", ())


@pytest.mark.parametrize("gather", [1, 2, 3, 5])
@pytest.mark.parametrize("bound", [0, 1, 4])
def test_every_iteration_is_in_one_batch(gather, bound, tmp_path):
    """Whatever the workers' speeds; a checkpoint and the end wait for whole batches."""
    draw = random.Random(gather)
    durations = Speeds(draw)
    commands = [(20 * STEPS, CHECKPOINT), (40 * STEPS, CHECKPOINT)]
    run = Batches(tmp_path, durations, bound, 60, gather, commands).run()
    assert {len(batch) for batch in run.taken} == {gather}
    assert max(stale for batch in run.taken for _, stale in batch) <= bound
    assert 60 * STEPS * len(durations) // 5 <= run.env_steps <= (60 + 2 * gather) * STEPS
    assert len(run.saves) == 3
    check_log(tmp_path, run.plan, run.taken)


@pytest.mark.parametrize(("bound", "held"), [(0, 0), (1, 0), (4, 0), (4, 1)])
def test_a_fast_worker_may_have_several_records_in_a_batch(bound, held, tmp_path):
    """A batch has as many messages as there are workers, and each record goes to its own lane.

    Whether the replay holds none at first, or those of all environments but one.
    """
    before = np.array([held, held, held, 0, held])
    kept = SimpleNamespace(inserted=before.copy(), sources=[])
    commands = [(20 * STEPS, CHECKPOINT), (40 * STEPS, CHECKPOINT)]
    run = Batches(tmp_path, Speeds(random.Random(bound)), bound, 200, 5, commands, kept).run()
    assert {len(batch) for batch in run.taken} == {5}
    assert max(stale for batch in run.taken for _, stale in batch) <= bound
    workers = [[worker for worker, _ in batch] for batch in run.taken]
    assert workers[0] == [0, 1, 2, 3, 4], "then there is a record of each environment"
    assert any(len(set(batch)) < 5 for batch in workers) == (bound > 1)
    assert most_apart(workers, 5) <= bound + 1
    check_log(tmp_path, run.plan, run.taken)
    new = kept.inserted - before
    assert [sum(batch.count(w) for batch in workers) for w in range(5)] == new.tolist()
    assert run.env_steps == sum(new) * STEPS
    assert len(run.saves) == 3


class Learner(Batches):
    """One of two learners, each of which serves four of eight workers.

    Args:
        mail: queues of the learners' messages to each other, by replica of the target.
        together: passed by both in the midst of an update, as the reduction of gradients is.
    """

    def __init__(self, folder, replica, mail, together, bound, gather, commands, kept):
        speeds = Speeds(random.Random(replica), 8, slow=5)
        self.durations, self.taken, self.run_dir, self.kept = speeds, [], folder, kept
        self._make(speeds, bound, 100, False, () if replica else commands, gather, consumers=2)
        self.replica, self.env_indices = replica, range(4 * replica, 4 * replica + 4)
        self.others, self.together, self.error = mail, together, None
        self.server = BatchServer(kept, *self._given)
        self.thread = threading.Thread(target=self.main, daemon=True)

    def main(self):
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001  (asserted by the test)
            self.error = error
            self.together.abort()

    def send(self, rank, tag, data):
        if rank in self.fragment.ranks:
            self.others[rank - self.fragment.ranks[0]].put(data.copy())
        else:
            super().send(rank, tag, data)

    def receive(self, rank, tag, data, stage):
        data[:] = self.others[self.replica].get(timeout=20)

    def serve(self, update):
        turn = super().serve(update)
        next(turn)
        messages = yield "forth"
        self.together.wait(timeout=20)
        with pytest.raises(StopIteration):
            turn.send(messages)


@pytest.mark.parametrize("bound", [0, 1, 4])
@pytest.mark.parametrize(("gather", "kept"), [(1, False), (3, False), (4, False), (4, True)])
def test_learners_make_every_update_together(gather, bound, kept, tmp_path):
    """Whatever their workers' speeds; a checkpoint is after the same update of both."""
    mail, together = [queue.Queue(), queue.Queue()], threading.Barrier(2)
    commands = [(20 * STEPS, CHECKPOINT), (50 * STEPS, CHECKPOINT)]
    learners = []
    for replica in range(2):
        replay = SimpleNamespace(inserted=np.zeros(4, int), sources=[]) if kept else None
        given = replica, mail, together, bound, gather, commands, replay
        learners.append(Learner(tmp_path, *given))
    for learner in learners:
        learner.thread.start()
    for learner in learners:
        learner.thread.join(30)
        assert learner.error is None
    first, second = learners
    assert first.version == second.version == -(-100 // (2 * gather))
    assert first.env_steps == second.env_steps == first.version * 2 * gather * STEPS
    assert first.saves == second.saves
    assert len(first.saves) == 3
    both = [one + other for one, other in zip(first.taken, second.taken, strict=True)]
    log = check_log(tmp_path, first.plan, both)
    assert max(stale for batch in both for _, stale in batch) <= bound
    if kept:
        inserted = np.concatenate([learner.kept.inserted for learner in learners])
        assert inserted.tolist() == np.bincount(log[:, :, 0].ravel()).tolist()
        assert most_apart(log[:, :, 0].tolist(), 8) <= bound + 1
    words = [word for learner in learners for word in learner.words]
    for worker in range(8):
        told = [command for rank, command in words if rank == worker and command]
        assert told == [PAUSE, CHECKPOINT, PAUSE, CHECKPOINT, PAUSE, STOP]


def check_log(folder, plan, taken):
    """Compares a log with the workers and their staleness of each batch. Returns: the log."""
    log = read_log(folder, plan).rows
    assert [[worker for worker, _ in batch] for batch in taken] == log[:, :, 0].tolist()
    stale = np.arange(len(log))[:, None] - log[:, :, 2]
    assert stale.tolist() == [[stale for _, stale in batch] for batch in taken]
    for worker in range(8):
        numbers = log[log[:, :, 0] == worker][:, 1]
        assert numbers.tolist() == list(range(len(numbers)))
    return log


def most_apart(workers, count):
    """Returns the most updates from one message of a worker to its next, or to the end."""
    turns = ([u for u, batch in enumerate(workers) if w in batch] for w in range(count))
    return max(np.diff([*found, len(workers)]).max() for found in turns)


class Speeds:
    """Durations of the iterations of workers, of which one is slow at times."""

    def __init__(self, draw, count=5, slow=3):
        self.draw, self.count, self.slow = draw, count, slow

    def __len__(self):
        return self.count

    def __getitem__(self, worker):
        return self.draw.choice((1.0, 1.2, 30.0 if worker == self.slow else 1.5))


def test_workers_act_while_the_learner_learns(tmp_path):
    """With a bound of 0 they wait for the parameters of their own update."""
    ends = []
    for bound in (0, 1):
        (folder := tmp_path / str(bound)).mkdir()
        ends.append(Batches(folder, (LEARN_S, LEARN_S), bound, 20, 2).run().time)
    assert ends[0] == 10 * 2 * LEARN_S
    assert ends[1] == (1 + 10) * LEARN_S


def test_a_slow_worker_is_waited_for():
    run = Simulation((1.0, 1.1, 20.0), bound=4, iterations=60).run()
    assert max(stale for _, stale in run.staleness) == 4
    turns = [sum(worker == w for w, _ in run.staleness) for worker in range(3)]
    assert turns[0] > turns[2]
    assert run.env_steps == 60 * STEPS
    assert run.metrics[-1]["staleness_max"] <= 4


def test_with_bound_0_workers_take_turns():
    run = Simulation((1.0, 1.1, 20.0), bound=0, iterations=30).run()
    assert run.staleness == [(i % 3, 0) for i in range(30)]


def test_dropping_waits_for_nobody():
    run = Simulation((1.0, 1.1, 20.0), bound=4, iterations=60, drop_stale=True).run()
    assert {stale for worker, stale in run.staleness if worker == 2} <= set(range(5))
    assert sum(part["dropped"] for part in run.metrics) == 60 - len(run.staleness) > 0
    assert run.server.tickets.version == run.version  # what was dropped is no update
    waiting = Simulation((1.0, 1.1, 20.0), bound=4, iterations=60).run()
    assert run.time < waiting.time / 2


def test_several_messages_an_iteration_count_each():
    run = Simulation((1.0, 3.0), bound=2, iterations=10, messages=5).run()
    assert len(run.staleness) == 50
    assert max(stale for _, stale in run.staleness) == 2
    assert run.env_steps == 10 * STEPS


def test_checkpoints_and_stops_are_at_quiet_points():
    commands = [(20 * STEPS, CHECKPOINT), (40 * STEPS, STOP)]
    run = Simulation((1.0, 1.1, 5.0), bound=6, iterations=1000, commands=commands).run()
    assert [20 * STEPS <= run.saves[0] <= 23 * STEPS, len(run.saves)] == [True, 2]
    assert 40 * STEPS <= run.saves[1] == run.env_steps <= 43 * STEPS
    for rank in range(3):
        words = [command for other, command in run.words if other == rank and command]
        assert words == [PAUSE, CHECKPOINT, PAUSE, STOP]


def report(rank, iteration, **metrics):
    return {"rank": rank, "iteration": iteration, "metrics": metrics, "episodes": []}


def test_reports_join_in_step():
    joined = InStep(2)
    assert joined.add(report(1, 1)) == []
    assert joined.add(report(1, 2)) == []
    assert [r["rank"] for r in joined.add(report(0, 1))] == [0, 1]


def test_reports_by_arrival_wait_for_the_servers_next():
    joined = AsTheyCome(server=2)
    assert joined.add(report(2, 1, staleness_max=1.0)) == []
    assert joined.add(report(0, 1, loss=1.0)) == []
    assert joined.add(report(0, 2, loss=3.0)) == []
    line = joined.add(report(2, 2))
    assert (line[-1]["iteration"], len(line)) == (1, 3)
    assert line[-1]["metrics"] == {"loss": 2.0, "staleness_max": 1.0}
    assert [r["iteration"] for r in joined.rest()] == [2]
    assert joined.rest() == []


def test_a_log_is_read_in_its_own_version_only(tmp_path):
    """A writer may be killed at any byte; logs of before had no header, or the steps alone."""
    plan = SimpleNamespace(arrivals=SimpleNamespace(gather=2, consumers=1))
    path, updates = tmp_path / ARRIVALS_FILE, np.arange(24).reshape(4, 2, 3)
    assert read_log(tmp_path, plan).rows.shape == (0, 2, 3)
    begin(tmp_path, 160)
    for rows in updates:
        append(tmp_path, rows)
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        log = read_log(tmp_path, plan)
        assert log.env_steps == (160 if size >= 24 else 0)
        assert log.rows.tolist() == updates[: max(size - 24, 0) // 48].tolist()
    old = updates.tobytes(), np.int64(160).tobytes() + updates.tobytes()
    for other in (*old, whole.replace(b"arrivals\3", b"arrivals\4"), b"a,b,c\n" * 9):
        path.write_bytes(other)
        with pytest.raises(MsrlError, match=r"arrivals.bin is no log of arrivals of version 3, "):
            read_log(tmp_path, plan)


def test_a_restart_without_progress_begins_as_the_job_did(tmp_path, monkeypatch):
    """Its first checkpoint is removed later, and the log of arrivals begins before it."""
    monkeypatch.setattr(training.checkpoint, "list_checkpoints", lambda folder: ["some"])
    monkeypatch.setattr(training, "_newest_checkpoint", lambda run: ("0.npz", {"env_steps": 40}))
    plan, options = SimpleNamespace(resume=""), SimpleNamespace(start_steps=40)
    assert training._restarted(plan, options, tmp_path) == (plan, options)
