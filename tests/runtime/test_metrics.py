import io
import json
import re
import sys

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

from mindspore_rl.errors import JobFailure, MsrlError, StorageError
from mindspore_rl.runtime.coordinator import metrics as metrics_module
from mindspore_rl.runtime.coordinator.metrics import Metrics
from mindspore_rl.runtime.coordinator.metrics_file import read_lines
from mindspore_rl.runtime.coordinator.verify_run import check_whole
from tests.commands import python


@pytest.fixture
def clock():
    clock = lambda: clock.now  # noqa: E731
    clock.now = 100.0
    return clock


class Terminal(io.StringIO):
    def isatty(self):
        return True


def lines(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def events(run_dir):
    """Reads the event files: a record is length (8 bytes), its CRC (4), the event, its CRC (4)."""
    found = []
    for path in sorted((run_dir / "tensorboard").glob("events.*")):
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            found.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return found


def scalars(run_dir):
    return [
        (value.tag, event.step, value.simple_value)
        for event in events(run_dir)
        for value in event.summary.value
    ]


def test_tensorboard_has_the_configuration_of_a_run(tmp_path, clock):
    about = {"policy": "Central", "gamma": 0.9, "hidden": (64, 64), "target_kl": None}
    metrics = Metrics(tmp_path, 1000, progress=False, about=about, clock=clock)
    metrics.log(1, 300, {}, [(10.0, 5)])
    metrics.close()
    told = [value for event in events(tmp_path) for value in event.summary.value]
    plugin = [v.metadata.plugin_data for v in told if v.metadata.plugin_data.plugin_name]
    assert {data.plugin_name for data in plugin} == {"hparams"}
    content = HParamsPluginData.FromString(plugin[1].content).session_start_info.hparams
    assert content["policy"].string_value == "Central"
    assert content["gamma"].number_value == 0.9
    assert content["hidden"].string_value == "(64, 64)"
    assert "episode/mean_return" in [value.tag for value in told]


def test_json_lines_hold_what_was_logged(tmp_path, clock):
    metrics = Metrics(tmp_path / "run", 1000, progress=False, start_steps=100, clock=clock)
    assert metrics.mean_return is None
    clock.now += 2.0
    metrics.log(1, 300, {"loss": 0.5}, [])
    clock.now += 2.5
    metrics.log(2, 900, {"loss": float("nan")}, [(10.0, 5), (20.0, 7)], age_s=0.5)
    metrics.close()
    metrics.close()
    first, second = lines(tmp_path / "run")
    assert first == {
        "iteration": 1,
        "env_steps": 300,
        "wall_s": 2.0,
        "steps_per_second": 100.0,
        "mean_return": None,
        "mean_length": None,
        "values": {"loss": 0.5},
    }
    assert (second["wall_s"], second["steps_per_second"]) == (4.0, 200.0)
    assert second["mean_return"] == metrics.mean_return == 15.0
    assert second["mean_length"] == 6.0
    assert second["values"] == {"loss": None}


def test_a_long_run_has_a_line_a_second_that_stands_for_all_its_iterations(
    tmp_path, clock, monkeypatch
):
    monkeypatch.setattr(metrics_module, "WHOLE_LINES", 10)
    metrics = Metrics(tmp_path, 10**6, progress=False, clock=clock)
    for i in range(1, 2001):  # 20 s
        clock.now += 0.01
        values = {"loss": float(i)} | ({"rare": 7.0} if i % 10 == 0 else {})
        told = metrics.log(i, 4 * i, values, [(float(i), 1)])
        assert (told["iteration"], told["values"]["loss"]) == (i, i)
    metrics.close()
    found = list(read_lines(tmp_path / "metrics.jsonl"))
    assert len(found) == 10 + 20
    assert [line["iteration"] for line in found[:10]] == list(range(1, 11))
    assert all("iterations" not in line for line in found[:10])
    assert found[-1]["iteration"] == 2000
    assert found[-1]["env_steps"] == 8000
    assert found[-1]["mean_return"] == np.mean(range(1901, 2001))
    covered, before = [line.get("iterations", 1) for line in found], 0
    assert sum(covered) == 2000
    for line, count in zip(found, covered, strict=True):
        assert line["iteration"] == before + count
        assert line["values"]["loss"] == pytest.approx(before + (count + 1) / 2)
        before += count
    assert {line["values"]["rare"] for line in found if "rare" in line["values"]} == {7.0}
    losses = [(step, value) for tag, step, value in scalars(tmp_path) if tag == "train/loss"]
    assert losses[-1] == (8000, pytest.approx(found[-1]["values"]["loss"]))


def test_a_slow_run_keeps_a_line_an_iteration_however_long_it_is(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(metrics_module, "WHOLE_LINES", 0)
    metrics = Metrics(tmp_path, 10**6, progress=False, clock=clock)
    for i in range(1, 6):
        clock.now += 1.0
        metrics.log(i, i, {"loss": float(i)}, [])
    metrics.close()
    assert [line["values"]["loss"] for line in lines(tmp_path)] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert all("iterations" not in line for line in lines(tmp_path))


def test_what_a_restart_keeps_of_a_long_run_ends_with_its_checkpoint(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(metrics_module, "WHOLE_LINES", 0)
    for started in (0, 40):
        metrics = Metrics(tmp_path, 100, progress=False, start_steps=started, clock=clock)
        for i in range(started + 1, started + 61):
            if i in (41, 76):
                metrics.keep()
                assert lines(tmp_path)[-1]["iteration"] == i - 1
            metrics.log(i, i, {"loss": float(i)}, [])
        metrics.close()
    found = [(line["iteration"], line["iterations"]) for line in lines(tmp_path)]
    assert found == [(40, 40), (75, 35), (100, 25)]


@pytest.mark.parametrize(
    "odd",
    [
        b"[1, 2]",
        b"7",
        b'{"iteration": 2}',
        b'{"iteration": 2, "env_steps": 2, "wall_s": 1.0, "values": [3]}',
        b'{"iteration": 2, "env_steps": 2, "wall_s": 1.0, "values": {"loss": "much"}}',
        b'{"iteration": 2, "env_steps": 2, "wall_s": 1.0, "values": {"loss": NaN}}',
        b'{"iteration": 2, "env_steps": 1' + b"0" * 400 + b', "wall_s": 1.0, "values": {}}',
        b'{"iteration": 2, "env_steps": null, "wall_s": 1.0, "values": {}}',
        b'{"iteration": 2, "env_steps": 2, "wall_s": true, "values": {}}',
        b"\xff\xfe",
        b"[" * 100_000,
        b" " * (3 << 20),
    ],
)
def test_an_odd_line_is_told_by_readers_and_cut_off_by_a_restart(tmp_path, clock, odd):
    file = tmp_path / "metrics.jsonl"
    good = b'{"iteration": 1, "env_steps": 1, "wall_s": 1.0, "values": {"loss": null}}\n'
    file.write_bytes(good + odd + b"\n" + good)
    with pytest.raises(MsrlError, match=r"metrics.jsonl: line 2 is none that a run writes \("):
        list(read_lines(file))
    with pytest.raises(JobFailure, match="line 2 is none"):
        for name in ("job.json", "plan.json"):
            (tmp_path / name).write_text("{}")
        check_whole(tmp_path, 1, None)
    Metrics(tmp_path, 10, progress=False, start_steps=5, clock=clock).close()
    assert file.read_bytes() == good


def test_a_half_written_line_is_passed_over(tmp_path):
    file = tmp_path / "metrics.jsonl"
    good = b'{"iteration": 1, "env_steps": 1, "wall_s": 1.0, "values": {}}\n'
    file.write_bytes(good + good[:20])
    assert [line["iteration"] for line in read_lines(file)] == [1]
    with pytest.raises(MsrlError, match="cannot be read"):
        list(read_lines(tmp_path / "none.jsonl"))


def test_a_restart_forgets_what_is_done_again(tmp_path, clock):
    first = Metrics(tmp_path, 1000, progress=False, clock=clock)
    for iteration in (1, 2, 3):
        first.log(iteration, 100 * iteration, {"loss": 1.0}, [])
        clock.now += 2.0
    first.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 4, "env_st')  # its writer was killed
    second = Metrics(tmp_path, 1000, progress=False, start_steps=200, clock=clock)
    second.log(3, 300, {"loss": 2.0}, [])
    second.close()
    found = [(line["iteration"], line["values"]["loss"]) for line in lines(tmp_path)]
    assert found == [(1, 1.0), (2, 1.0), (3, 2.0)]
    purges = [event.step for event in events(tmp_path) if event.HasField("session_log")]
    assert sorted(purges) == [1, 201]  # TensorBoard hides earlier events from there on


@pytest.mark.parametrize("lost", [1, 3])
def test_a_restart_has_a_line_for_those_that_a_power_failure_took(tmp_path, clock, lost):
    first = Metrics(tmp_path, 1000, progress=False, clock=clock)
    first.log(1, 100, {"loss": 1.0}, [(5.0, 10)])
    first.close()
    start = 1 + lost
    second = Metrics(tmp_path, 1000, False, 100 * start, start, clock=clock)
    second.close()
    last = lines(tmp_path)[-1]
    assert (last["iteration"], last["env_steps"], last["values"]) == (start, 100 * start, {})
    assert last.get("iterations", 1) == lost
    Metrics(tmp_path, 1000, False, 100 * start, start, clock=clock).close()
    assert len(lines(tmp_path)) == 2
    Metrics(tmp_path / "resumed", 1000, False, 100 * start, start, clock=clock).close()
    assert lines(tmp_path / "resumed") == []


def test_a_full_disk_is_told_and_not_waited_for(tmp_path):
    code = """
import resource, sys
from pathlib import Path
from mindspore_rl.errors import StorageError
from mindspore_rl.runtime.coordinator.metrics import Metrics
metrics = Metrics(Path(sys.argv[1]), 1000, progress=False, clock=iter(range(10**6)).__next__)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
for ended in (lambda: [metrics.log(i, i, {"loss": 0.0}, []) for i in range(10**4)], metrics.close):
    try:
        ended()
    except StorageError as error:
        print(error)
metrics.close()
"""
    done = python("-c", code, tmp_path, check=True, timeout=30)
    told = done.stdout.splitlines()
    assert len(told) == 2
    assert all("metrics.jsonl cannot be written (File too large)" in line for line in told)


def test_speed_forgets_a_slow_start(tmp_path, clock):
    metrics = Metrics(tmp_path, 10_000, progress=False, clock=clock)
    clock.now += 60.0  # compiling
    for i in range(20):
        clock.now += 1.0
        metrics.log(i, 50 * (i + 1), {}, [])
    metrics.close()
    assert lines(tmp_path)[-1]["steps_per_second"] == 50.0


@pytest.mark.parametrize("instead", [False, True])
def test_a_file_that_is_removed_is_missed_within_a_second(tmp_path, clock, instead):
    metrics = Metrics(tmp_path, 1000, progress=False, clock=clock)
    (tmp_path / "metrics.jsonl").unlink()
    if instead:
        (tmp_path / "metrics.jsonl").touch()
    metrics.log(1, 1, {}, [])
    clock.now += 1.0
    with pytest.raises(StorageError, match=r"metrics.jsonl cannot be written \((No such|it is no)"):
        metrics.log(2, 2, {}, [])


def test_files_are_written_each_second_and_at_the_end(tmp_path, clock):
    metrics = Metrics(tmp_path, 1000, progress=False, clock=clock)
    for i in range(1, 26):  # 2.5 s
        clock.now += 0.1
        metrics.log(i, i, {"loss": float(i)}, [(1.0, 1)])
    assert 20 <= len(lines(tmp_path)) < 25
    metrics.close()
    assert len(lines(tmp_path)) == 25
    losses = [(step, value) for tag, step, value in scalars(tmp_path) if tag == "train/loss"]
    assert len(losses) == 3
    assert losses[-1] == (25, 25.0)
    assert all(step == value for step, value in losses)
    assert {tag for tag, _, _ in scalars(tmp_path)} == {
        "episode/mean_return",
        "episode/mean_length",
        "speed/steps_per_second",
        "train/loss",
    }


NOTE, MEAN = "saved [checkpoint]", "mean return 3.0"
SHOWN = {
    "every 5 s and at the end": (
        (2400, [(0.1, 10)] * 120),
        f"env_steps 510/2,400  100 steps/s  {MEAN}  time left 0:19",
        f"env_steps 1,020/2,400  100 steps/s  {MEAN}  time left 0:14",
        NOTE,
        f"env_steps 1,200/2,400  100 steps/s  {MEAN}  time left 0:12",
    ),
    "the last line once": (
        (1000, [(6.0, 100)]),
        "env_steps 100/1,000  17 steps/s  mean return -",
        NOTE,
    ),
    "the time left, without the first iteration, which compiles": (
        (1000, [(2.0, 100), *[(1.0, 100)] * 3]),
        f"env_steps 400/1,000  80 steps/s  {MEAN}  time left 0:06",
        NOTE,
    ),
    "the time left, once it is known": (
        (1000, [(50.0, 100), *[(5.0, 100)] * 3]),
        "env_steps 100/1,000  2 steps/s  mean return -",
        f"env_steps 200/1,000  20 steps/s  {MEAN}",
        f"env_steps 300/1,000  20 steps/s  {MEAN}",
        f"env_steps 400/1,000  20 steps/s  {MEAN}  time left 0:30",
        NOTE,
    ),
    "more steps than are asked for": (
        (10, [(1.0, 1024)]),
        NOTE,
        "env_steps 1,024/10  1,024 steps/s  mean return -  time left 0:00",
    ),
    "notes alone": ((None, [(60.0, 10)]), NOTE),
}
"""Steps asked for, or None without progress; time and steps of each iteration; lines shown."""


@pytest.mark.parametrize("case", SHOWN)
def test_lines_without_a_terminal(case, tmp_path, clock, capsys):
    (asked, iterations), *shown = SHOWN[case]
    metrics = Metrics(tmp_path, asked or 10, progress=asked is not None, clock=clock)
    done = 0
    for i, (seconds, steps) in enumerate(iterations, 1):
        clock.now += seconds
        done += steps
        metrics.log(i, done, {}, [(3.0, 1)] if i > 1 else [])
    metrics.keep()  # the checkpoint at the end
    metrics.note(NOTE)
    metrics.close()
    out, err = capsys.readouterr()
    assert (out, err.splitlines()) == ("", shown)


def test_on_a_terminal_a_bar_and_notes_above_it(tmp_path, clock, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    piped = sys.stdout
    metrics = Metrics(tmp_path, 2000, progress=True, clock=clock)
    assert sys.stdout is piped
    clock.now += 1.0
    metrics.log(1, 1000, {}, [(7.0, 1)])
    metrics.note("saved [checkpoint]")
    metrics.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert "saved [checkpoint]\n" in text
    assert "1,000/2,000 steps" in text
    assert "1,000 steps/s  mean return 7.0" in text
