"""Programs of many shapes give the reference's numbers under every policy (design, section 5)."""

import contextlib
import dataclasses
import itertools

import numpy as np
import pytest

from mindspore_rl import programs
from mindspore_rl.environments.registry import spec
from mindspore_rl.errors import ProgramError
from mindspore_rl.jobs import registry
from mindspore_rl.policy import Cut, DistributionPolicy, FragmentRule
from mindspore_rl.runtime import checkpoint, replay_segments
from mindspore_rl.runtime.rank import replay_checkpoint
from mindspore_rl.runtime.reference import Reference
from tests.compiler import inproc
from tests.compiler.programs import program_with
from tests.multiprocess import theorem
from tests.tiers import quick

NAMES = ("two_phase", "a2c", "recurrent", "explore", "kl_stop", "two_rollouts", "early_ends")
SCATTERED = DistributionPolicy(
    "Scattered",
    "every component by itself, in shares that do not match",
    (
        FragmentRule("e", ("environment",), 2, "env"),
        FragmentRule("a", ("actor",), 3, "env"),
        FragmentRule("r", ("replay",), 2, "env"),
        FragmentRule("g", ("gradient",), 3, "env"),
        FragmentRule("u", ("update",)),
    ),
    (
        Cut("observation", "environment", "actor"),
        Cut("action", "actor", "environment"),
        Cut("transition", "actor", "replay"),
        Cut("batch", "replay", "gradient"),
        Cut("gradient", "gradient", "update"),
        Cut("parameters", "update", "actor"),
    ),
)
EVERYWHERE = "Central", "MultipleLearners", SCATTERED
CASES = [(name, policy, "CartPole-v1") for name in NAMES for policy in EVERYWHERE]
QUICK = [
    (name, policy, "CartPole-v1")
    for name, policy in zip(NAMES, itertools.cycle(EVERYWHERE), strict=False)
    if name == "two_rollouts"
]
QUICK += [
    ("marks_in_branches", "SingleLearnerCoarse", "CartPole-v1"),
    ("kept_images", SCATTERED, "probe:pixels"),
]
"""Programs of their own kind, each under one policy; A2C and what explores are in test_theorem.py,
`recurrent` is in test_chunks.py."""
CASES += [
    ("kept", SCATTERED, "CartPole-v1"),
    ("across", SCATTERED, "CartPole-v1"),
    ("kl_stop", "SingleLearnerCoarse", "CartPole-v1"),
    ("recurrent", "SingleLearnerFine", "CartPole-v1"),
    ("two_rollouts", "GPUOnly", "graph:CartPole-v1"),
    ("sampled_in_a_loop", "GPUOnly", "graph:CartPole-v1"),
    ("kept", "GPUOnly", "graph:CartPole-v1"),
    ("sampled_in_a_loop", "SingleLearnerCoarse", "CartPole-v1"),
    ("marks_in_branches", "SingleLearnerCoarse", "graph:CartPole-v1"),
    ("kept", "SingleLearnerCoarse", "CartPole-v1"),
    ("kept", "SingleLearnerCoarse", "graph:CartPole-v1"),
    ("across", "GPUOnly", "graph:CartPole-v1"),
    ("across", "SingleLearnerCoarse", "CartPole-v1"),
    ("across", "SingleLearnerFine", "CartPole-v1"),
    ("across", "MultipleLearners", "CartPole-v1"),
    ("across", "Central", "CartPole-v1"),
    *(("two_replays", policy, "CartPole-v1") for policy in (*EVERYWHERE, "SingleLearnerFine")),
    ("two_replays", "SingleLearnerCoarse", "graph:CartPole-v1"),
]


@pytest.mark.parametrize(
    ("name", "policy", "environment"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES if case not in QUICK)],
    ids=lambda v: getattr(v, "name", v),
)
def test_three_workers_equal_the_reference(name, policy, environment, tmp_path):
    job = inproc.request(inproc.PROGRAMS / f"{name}.py", policy, 3, env=environment)
    assert inproc.differences(job, tmp_path) == []


@pytest.mark.parametrize("by", quick(["stratified", "uniform"], 0))
def test_draws_under_a_condition_are_those_of_the_plain_loop(by, tmp_path):
    job = inproc.request(inproc.PROGRAMS / "late_draws.py", "MultipleLearners", 2, by=by)
    assert inproc.differences(job, tmp_path) == []


@pytest.mark.parametrize(
    ("name", "policy", "workers"),
    quick(
        [
            ("named", "MultipleLearners", 2),
            ("records", "Central", 2),
            ("ensemble", "MultipleLearners", 2),
            ("ensemble", "Central", 2),
            ("across", "MultipleLearners", 1),
            ("across", "MultipleLearners", 2),
        ],
        0,
        1,
    ),
)
def test_fewer_workers_equal_the_reference(name, policy, workers, tmp_path):
    file = inproc.PROGRAMS / f"{name}.py"
    job = inproc.request(file, policy, workers, num_steps=4)
    assert inproc.differences(job, tmp_path) == []


def test_a_fragment_with_nothing_to_do_takes_part(tmp_path):
    lines = (
        "gradient = msrl.gradient(self.loss, self.net, obs, action, target)",
        'grads, means = msrl.boundary("gradient", gradient)',
        "msrl.update(self.apply, grads)",
        'return {"loss": means[0]}',
    )
    learn = 'return {"reward": msrl.mean(reward)}'
    file = program_with(tmp_path, remove=[(line, "pass") for line in lines], learn=learn)
    assert inproc.differences(inproc.request(file, SCATTERED, 2), tmp_path / "job") == []


@pytest.mark.slow
def test_every_replay_goes_on_when_a_run_resumes(tmp_path):
    def run(name, iterations, resume=""):
        job = inproc.request(inproc.PROGRAMS / "two_replays.py", "MultipleLearners", 2)
        job = dataclasses.replace(job, record=(), num_iterations=iterations)
        return inproc.run(dataclasses.replace(job, resume=resume), tmp_path / name)[1]

    whole = checkpoint.load(run("whole", 4))[0]
    rest = checkpoint.load(run("rest", 4, str(run("half", 2))))[0]
    assert {"replay/3", "replay/model/3", "counters/inserted/model"} <= rest.keys() == whole.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(rest[name], array, err_msg=name)


@pytest.mark.parametrize(
    ("by", "policy"),
    [
        ("uniform", "SingleLearnerCoarse"),
        *(
            pytest.param(by, policy, marks=pytest.mark.slow)
            for by in ("stratified", "uniform", "distinct")
            for policy in ("MultipleLearners", "Central", SCATTERED)
        ),
    ],
)
def test_a_batch_may_be_no_multiple_of_the_environments(by, policy, tmp_path):
    batch = {"by": by, "own_batch": 7, "model_batch": 29}
    job = inproc.request(inproc.PROGRAMS / "two_replays.py", policy, 3, **batch)
    assert inproc.differences(job, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["MultipleLearners", SCATTERED], ids=["with", "apart"])
def test_a_replay_goes_to_checkpoints_and_back_in_pieces(policy, tmp_path, monkeypatch):
    monkeypatch.setattr(replay_segments, "PIECE_BYTES", 500)
    monkeypatch.setattr(replay_checkpoint, "SMALL_BYTES", 1)
    job = inproc.request(inproc.PROGRAMS / "two_replays.py", policy, 3, env="CartPole-v1")
    reference = inproc.run_reference(job, tmp_path)
    assert inproc.run_and_compare(job, reference, tmp_path) == []
    last = checkpoint.list_checkpoints(tmp_path / checkpoint.FOLDER)[-1]
    assert theorem.compare_states(last, reference.checkpoints[-1], "replay/") == []
    meta = checkpoint.look(last)
    nothing = np.zeros(meta["num_envs"], np.int64)
    for name, columns in (("", 4), ("model", 4)):  # three values and priorities
        parts = [number for number, *_ in checkpoint.replay_parts(last, meta, nothing, name)]
        assert parts.count(0) > 1
        assert set(parts) == set(range(columns))


@pytest.mark.parametrize(
    "options",
    [
        dict.fromkeys(("normalise_obs", "normalise_reward", "clip_value_loss"), True)
        | {"target_kl": 1e-5},
        {"env": "Pendulum-v1"},
    ],
    ids=str,
)
@pytest.mark.slow
def test_ppo_options(options, tmp_path):
    config = {"num_steps": 16, "update_epochs": 2, **options}
    job = inproc.request(registry.find_algorithm("ppo"), "MultipleLearners", 3, **config)
    assert inproc.differences(job, tmp_path) == []


APE_X = {
    "epsilon_start": 0.4, "epsilon_end": 0.4, "epsilon_alpha": 7.0, "num_envs": 4, "num_steps": 4,
    "n_step": 2, "updates": 2, "batch_size": 8, "learning_starts": 0, "hidden": (8,),
}  # fmt: skip


def test_each_environment_of_ape_x_has_its_epsilon():
    cls = programs.trainer_class(registry.find_algorithm("dqn"))
    config = cls.Config(**APE_X)
    trainer = cls(config, spec(config.env))
    act, seen = trainer.actor.act, []

    def watched(obs, epsilon, noise):
        seen.append(epsilon.asnumpy())
        return act(obs, epsilon, noise)

    trainer.actor.act = watched
    Reference(trainer, 1).run()
    expected = [0.4, 0.0471556, 0.0055591, 0.00065536]  # exponents 1, 10/3, 17/3 and 8
    np.testing.assert_allclose(seen, [expected] * 4, rtol=1e-4)


def test_ape_x_equals_the_reference(tmp_path):
    job = inproc.request(registry.find_algorithm("dqn"), "SingleLearnerCoarse", 3, **APE_X)
    assert inproc.differences(job, tmp_path) == []


def test_a_batch_carried_to_the_next_iteration_stays_as_it_was(tmp_path):
    program = program_with(
        tmp_path,
        learn="target = reward + before[:, :, 2]",
        remove=[
            ("def learn(self, msrl, batch)", "def learn(self, msrl, batch, before)"),
            (
                "        for _ in msrl.iterations",
                "        before = 0.0 * ops.stack((obs,) * 4)\n        for _ in msrl.iterations",
            ),
            (
                "msrl.report(msrl.agent_learn(batch))",
                "msrl.report(msrl.agent_learn(batch, before))\n            before = batch[0]",
            ),
        ],
    )
    job = inproc.request(program, "MultipleLearners", 2, num_steps=4)
    job = dataclasses.replace(job, record=())
    _, last = inproc.run(job, tmp_path / "run")
    assert theorem.compare_states(last, inproc.run_reference(job, tmp_path).checkpoints[-1]) == []


SOMETIMES = """
if msrl.env_steps() > 0:
    target = msrl.boundary("advantage", 0.5 * target)
for i in range(3):
    if i * msrl.env_steps() > 40:
        target = msrl.boundary("advantage", target - 0.25 * i)
"""


@pytest.mark.parametrize(
    ("spoilt", "site"), quick([("", ""), ("0.5 *", "#1"), ("- 0.25 *", "#2")], 0, 2)
)
def test_marks_under_conditions_are_recorded(spoilt, site, tmp_path):
    def spoil(folder):
        for file in (folder / "fragments").glob("*.py"):
            file.write_text(file.read_text().replace(spoilt, f"{spoilt} 1.1 *"))

    program = program_with(tmp_path, learn=SOMETIMES)
    job = inproc.request(program, "MultipleLearners", 2, num_steps=4)
    wrong = inproc.differences(job, tmp_path, spoil if spoilt else None)
    assert bool(wrong) == bool(spoilt)
    assert not spoilt or any(f"1: boundary:advantage{site}: " in line for line in wrong)


def test_one_mean_passed_from_cell_to_cell(tmp_path):
    program = program_with(
        tmp_path,
        learn="""
            for _ in msrl.epochs(2):
                grads, means = msrl.boundary(
                    "gradient", msrl.gradient(self.error, self.net, obs, action, target))
                msrl.update(self.apply, grads)
            msrl.report({"first": means[0]})
            msrl.update(self.slow_down, means)
        """,
        remove=[
            (
                "    def learn",
                "    def error(self, *args):\n"
                "        return self.loss(*args)[0]\n\n"
                "    def slow_down(self, means):\n"
                "        ops.assign(self.optimizer.learning_rate, 0.01 * ops.tanh(means[0]))\n\n"
                "    def learn",
            )
        ],
    )
    job = inproc.request(program, "MultipleLearners", 1, num_steps=4)
    job = dataclasses.replace(job, record=(), compiled=True)
    assert inproc.differences(job, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("environment", ["CartPole-v1", "graph:CartPole-v1"])
@pytest.mark.parametrize("name", NAMES)
def test_compiled_equals_the_reference(name, environment, tmp_path):
    job = inproc.request(inproc.PROGRAMS / f"{name}.py", "MultipleLearners", 1, env=environment)
    assert inproc.differences(dataclasses.replace(job, compiled=True), tmp_path) == []


FROZEN = """
def frozen(size, value=0):
    value = Tensor(np.full(size, value, np.float32))
    return Parameter(value, requires_grad=False)

class Algorithm("""
ODD = "net = Net(config, spec)\n        "
ODD += "self.made = Algorithm.made = getattr(Algorithm, 'made', 0) + 1\n        {line}"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("net.more = frozen(2 + self.made)", r"net\.more is \[\d+\] float32, and \[\d+\]"),
        ("setattr(net, f'more_{self.made}', frozen(2))", r"more_\d+ in the place of"),
        ("net.more = frozen(2, self.made)", "has other initial values"),
        pytest.param("net.more = nn.Dense(2, 2)", "", marks=pytest.mark.slow),
    ],
    ids=["shape", "name", "values", "seeded"],
)
def test_ranks_whose_trainers_differ_are_told_at_the_start(line, told, tmp_path):
    changed = [
        (
            "from mindspore import nn",
            "import numpy as np\nfrom mindspore import Parameter, Tensor, nn",
        ),
        ("\nclass Algorithm(", FROZEN),
        ("net = Net(config, spec)", ODD.format(line=line)),
    ]
    file = program_with(tmp_path, changed)
    job = inproc.request(file, "MultipleLearners", 2, num_steps=4)
    job = dataclasses.replace(job, record=())
    with pytest.raises(ProgramError, match=told) if told else contextlib.nullcontext() as caught:
        inproc.run(job, tmp_path / "run")
    assert not told or "rank 0" in str(caught.value)
