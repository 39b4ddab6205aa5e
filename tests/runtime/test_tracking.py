"""Reports to Weights & Biases, without a network and without an account."""

import struct
import sys

import pytest

from mindspore_rl.errors import MsrlError
from mindspore_rl.runtime.coordinator.metrics import Metrics
from tests.commands import msrl

TRAIN = ["train", "a2c", "--total-steps", "640", "--stop-return", "nan", "--quiet"]
HEADER, BLOCK, LAST = 7, 32768, (1, 4)
"""Bytes before a record (as many before the first), of a block, and the kinds that end a record."""


def records(file):
    """Reads an offline run: logged values by name, one line each; and its configuration.

    The file is a log in LevelDB's form, of protobuf records.
    """
    from wandb.proto import wandb_internal_pb2  # noqa: PLC0415

    data, at, parts, lines, config = file.read_bytes(), HEADER, b"", [], {}
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:  # the rest of a block is empty
            at += BLOCK - at % BLOCK
        size, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind not in LAST:
            continue
        record, parts = wandb_internal_pb2.Record.FromString(parts), b""
        config |= {item.key: item.value_json for item in record.run.config.update}
        logged = record.history.item
        if logged:
            lines.append({"/".join(x.nested_key) or x.key: x.value_json for x in logged})
    return lines, config


@pytest.mark.slow
def test_an_offline_run_has_the_metrics_and_the_configuration(tmp_path):
    run, offline = tmp_path / "run", {"WANDB_MODE": "offline"}
    done = msrl(*TRAIN, "--wandb", "--run-dir", run, env=offline, check=True)
    assert "wandb" not in done.stderr
    (file,) = run.glob("wandb/offline-run-*/run-*.wandb")
    lines, config = records(file)
    assert lines[-1]["env_steps"] == "640"
    assert float(lines[-1]["train/loss"])
    assert (config["num_envs"], config["algorithm"]) == ("8", '"a2c"')


def test_who_is_not_logged_in_is_told_what_to_do(tmp_path, monkeypatch):
    import wandb  # noqa: PLC0415

    def init(**_):
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "init", init)
    with pytest.raises(MsrlError, match=r"No API key configured.*WANDB_MODE=offline"):
        Metrics(tmp_path / "run", 100, progress=False, wandb="mine")


def test_a_missing_package_is_told_before_anything_is_begun(tmp_path, monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert "--wandb needs wandb, which is not installed" in refused(
        *TRAIN, "--wandb", "mine", "--run-dir", tmp_path / "run"
    )
    assert not (tmp_path / "run").exists()
