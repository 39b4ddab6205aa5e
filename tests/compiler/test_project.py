"""Projection: a fragment's program stores and distributes rows, and has its messages in place."""

from mindspore_rl.compiler.ir.ir import walk
from mindspore_rl.compiler.lowering.project import project
from mindspore_rl.compiler.pipeline import analyse
from tests.compiler import inproc
from tests.compiler.programs import analyse_with


def _ops(cut, fragment, kind):
    """Returns the operations of a kind with the kinds of their enclosing loops."""
    body = project(cut, fragment, in_graph=False).body
    return [(op, [loop.kind for loop in loops]) for op, loops in walk(body) if op.kind == kind]


TWICE = """
weight = msrl.boundary("transition", reward)
half = weight + 0.0
for i in range(2):
    weight = msrl.boundary("transition", 0.5 * weight)
both = half + weight
"""


def test_each_buffer_of_rows_has_one_writer(tmp_path):
    insert = 'msrl.boundary("transition", (obs, action'
    remove = [(f"{insert}, reward)))", f"{insert})), both)")]
    found = analyse_with(tmp_path, "SingleLearnerCoarse", loop=TWICE, remove=remove)
    kept = [op for op, _ in _ops(found, "actor", "stack") if op.args[1] == "weight"]
    assert [op.attr["rows"] for op in kept] == [4, 4]
    assert len({op.targets[0] for op in kept}) == 2


def test_a_value_is_sent_before_it_is_set_anew(tmp_path):
    sample = "batch = msrl.boundary"
    remove = [
        ("for _ in msrl.iter", "income = 0.0 * obs[:, 0]\n        for _ in msrl.iter"),
        (
            sample,
            'earned = msrl.boundary("transition", income)\n'
            f"            income = 0.0 * income\n            {sample}",
        ),
        ("agent_learn(batch)", "agent_learn((*batch[:2], batch[2] + earned))"),
    ]
    found = analyse_with(
        tmp_path, "SingleLearnerCoarse", loop="income = income + reward", remove=remove
    )
    ops = [op for op, _ in walk(project(found, "actor", in_graph=False).body)]
    (send,) = [op for op in ops if op.kind == "send" and "income" in op.reads]
    (anew,) = [op for op in ops if op.args == ("0.0 * income",)]
    assert ops.index(send) < ops.index(anew)


def test_draws_of_a_loop_over_updates_are_made_before_it(tmp_path):
    learn = """
    for _ in range(2):
        g, _ = msrl.gradient(self.loss, self.net, *msrl.replay_sample(8))
        msrl.update(self.apply, g)
    """
    keep = "msrl.replay_insert(obs, action, reward, keep=64)"
    found = analyse_with(tmp_path, "SingleLearnerCoarse", learn=learn, loop=keep, compiled=False)
    assert [loops for _, loops in _ops(found, "learner", "replay_draw")] == [["iterations"]]


def test_a_message_under_a_condition_keeps_all_of_its_pair_in_the_loop():
    job = inproc.request(inproc.PROGRAMS / "marks_in_branches.py", "SingleLearnerCoarse", 2)
    found = analyse(job)
    sent = [item for item in _ops(found, "actor", "send") if "transition" in item[0].name]
    assert [loops for _, loops in sent] == [["iterations", "steps"]] * 3
