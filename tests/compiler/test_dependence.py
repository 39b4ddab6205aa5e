"""Row dependence read from compiled graphs; no case agrees by luck."""

import re

import pytest

from mindspore_rl.compiler.ir.ir import walk
from mindspore_rl.errors import PolicyError
from tests.compiler.programs import analyse_with
from tests.tiers import quick

HELPERS = """
import numpy as np
from tests.tiers import quick

def few(x, most):
    return bool((x > 0.0).astype("float32").sum() < most)

def doubled(x):
    if few(x, 3):
        x = 2.0 * x
    return x

def crowded(x):
    if x.shape[1] > 100:
        x = 2.0 * x
    return x

def until_small(x):
    total = x.max()
    while total > 1.0:
        total = 0.5 * total
        x = 0.5 * x
    return x

def recurrence(x):
    state, step = ops.zeros_like(x[0]), ms.Tensor(0, ms.int32)
    while step < 3:
        state = ops.tanh(state + x[0])
        step = step + 1
    return state

def in_a_list(x):
    rows = []
    for step in range(6):
        rows.append(x[0] - step)
    return ops.stack(rows)

class Learn(BaseLearner):
    def __init__(self, net, config):
        super().__init__(net, config)
        self.cell, self.convolution = nn.GRUCell(4, 8), nn.Conv2d(1, 3, 2)

    def any_above(self, x):
        return ops.any(x > 100.0)

    def rescaled(self, x):
        return doubled(self.halved(x))

    def halved(self, x):
        return 0.5 * x
"""
MIXED = [
    "(ops.abs(reward) < -1.0).astype('float32').sum() < 3.5",
    "(reward > 100.0).any()",
    "(reward > 100.0).all()",
    "ops.any(reward > 100.0, 1)",
    "ops.argmax(0.0 * reward, 1)",
    "ops.floor(1e-3 * reward.mean())",
    "ops.sign(1e3 + reward.sum())",
    "ops.clamp(1e3 + reward.max(), 0.0, 1.0)",
    "ops.round(1e-3 * reward.std())",
    "ops.where(ops.amax(reward) > 6e3, 2.0 * reward, reward)",
    "ops.where(reward[:, 0:1] > 6e3, 2.0 * reward, reward)",
    "(reward[0, 0] > 6e3).astype('float32')",
    "ops.sort(0.0 * reward, 1)[0]",
    "ops.cumsum(0.0 * reward, 1) > 1.0",
    "ops.flip(0.0 * reward, (1,)) > 1.0",
    "ops.topk(0.0 * reward, 1)[0] > 1.0",
    "ops.softmax(0.0 * reward, 1) > 2.0",
    "ops.sigmoid(1e4 + 1e3 * reward.sum())",
    "(reward.reshape(-1).max() > 6e3).astype('float32')",
    "ops.any(ops.transpose(reward, (1, 0)).reshape((2, -1)) > 6e3, 1)",
    "ops.any(ops.matmul(reward, reward.T) > 6e5)",
    "(ops.transpose(reward, (1, 0)).sum(0) > 6e5)",
    "(ops.concat((reward, 0.0 * reward), 1).mean(1) > 6e5)",
    "int(1e-6 * reward.sum())",
    "1 if reward.mean() > 6e3 else 0",
    "few(reward, 1e9)",
    "doubled(0.0 * reward)",
    "until_small(0.0 * reward)",
    "self.any_above(reward)",
    "ops.sort(in_a_list(0.0 * reward), 1)[0]",
    "self.rescaled(0.0 * reward)",
]
"""Programs whose results on a share equal those on the whole with the data of trials."""
NUMBERS_OF_ROWS = ["1 if reward.shape[1] > 100 else 0", "len(reward[0]) > 100", "crowded(reward)"]
"""These read no row, only the number of rows; trials go up to 240 environments."""
ROW_BY_ROW = [
    "ops.cumsum(reward, 0)",
    "ops.sort(reward, 0)[0]",
    "ops.argmax(obs, -1)",
    "(obs * obs).mean(-1)",
    "ops.softmax(obs, -1)[:, :, 1]",
    "ops.one_hot(action, 3)",
    "ops.gather_elements(obs, -1, ops.expand_dims(action, -1)).squeeze(-1)",
    "ops.concat((reward[1:], ops.zeros_like(reward[:1])), 0)",
    "ops.stack((reward, 2.0 * reward), 1)",
    "ops.transpose(ops.transpose(obs, (1, 2, 0)), (2, 0, 1))",
    "self.net.policy(obs.reshape((-1, obs.shape[-1]))).reshape((*obs.shape[:2], -1))",
    "ops.where(reward > reward[0], reward, -reward)",
    "ops.matmul(obs, ops.ones((4, 2)))",
    "ops.logsumexp(obs, -1)",
    "ops.broadcast_to(ops.expand_dims(reward, -1), obs.shape) * obs",
    "ops.unstack(reward, 0)[1]",
    "ops.amax(obs, (0, 2)) > 1.0",
    "ops.repeat_interleave(reward, 2, 0)",
    "recurrence(obs)",
    "in_a_list(obs)",
    "self.cell(obs[0], ops.zeros((obs.shape[1], 8)))",
    "self.convolution(obs.reshape((-1, 1, 2, 2))).reshape((*obs.shape[:2], -1))",
    "ops.bmm(ops.swapaxes(obs, 0, 1), ops.transpose(obs, (1, 2, 0)))",
    "ops.tensor_scatter_elements(obs, ops.expand_dims(action, -1), -obs[..., :1], -1)",
    "ops.tensor_scatter_update(obs, ms.Tensor([[1]], ms.int32), -obs[:1])",
    "ops.smooth_l1_loss(obs, 0.5 * obs, reduction='none')",
    "ops.topk(obs, 2)[0]",
    "ops.norm(obs, dim=-1)",
    "reward * (1.0 if msrl.mean(reward) > 6e3 else 2.0)",
]
UNDECIDED = [
    "ops.gather(reward, ops.arange(reward.shape[1]), 1)",
    "obs[:, ops.arange(reward.shape[1]), action[0]]",
]
"""Row by row, as only trials show."""


def _dependent(folder, lines):
    """Returns which of the lines combine rows: one program contains them all."""
    learn = "\n".join(f"line_{number} = {line}" for number, line in enumerate(lines))
    changed = [
        ("class Learn(BaseLearner):\n", HELPERS + "\n"),
        ("from mindspore import nn, ops", "import mindspore as ms\nfrom mindspore import nn, ops"),
    ]
    program = analyse_with(folder, "GPUOnly", 1, learn=learn, remove=changed).program
    found = [op for op, _ in walk(program.body) if op.name in program.row_dependent]
    return {op.where.text.split(" = ", 1)[1] for op in found}, program.row_dependent


def test_what_mixes_rows_is_found_whatever_the_data(tmp_path):
    lines = MIXED + NUMBERS_OF_ROWS
    found, evidence = _dependent(tmp_path, lines)
    assert [line for line in lines if line not in found] == []
    assert any("in its compiled graph" in text for text in evidence.values())


def test_what_goes_row_by_row_is_left_in_peace(tmp_path):
    assert _dependent(tmp_path, ROW_BY_ROW + UNDECIDED) == (set(), {})


def test_a_truth_value_of_split_rows_decides_nothing(tmp_path):
    lines = "few = ops.abs(reward).sum() < 3.5\nif few:\n    target = 2.0 * reward"
    with pytest.raises(PolicyError, match="SumExt in its compiled graph") as caught:
        analyse_with(tmp_path, learn=lines)
    assert re.search(r"program_\w+\.py:\d+: few = ", str(caught.value))


def test_a_truth_value_of_a_marked_sum_decides(tmp_path):
    lines = """
        ended = (reward > 0.0).astype("float32")
        few = msrl.sum(ended) < 4.0
        if few:
            target = 2.0 * reward"""
    assert analyse_with(tmp_path, learn=lines).program.row_dependent == {}


LOSSES = {
    "a condition on the batch": "a * ops.where(ops.amax(obs) > 6e3, 2.0, 1.0)",
    "a truth value in Python": "(2.0 * a if obs.max() > 6e3 else a)",
    "ranks": "a + 0.0 * ops.argsort(0.0 * a).astype('float32')",
}


@pytest.mark.parametrize("case", quick(LOSSES, 2))
def test_a_loss_that_mixes_rows(case, tmp_path):
    loss = f"""    def loss(self, obs, action, target):
        a, b = super().loss(obs, action, target)
        return {LOSSES[case]}, b

    def learn"""
    with pytest.raises(PolicyError, match="loss depends on several environments at once"):
        analyse_with(tmp_path, remove=[("    def learn", loss)])
