"""The main theorem on real ranks: from equal state, every synchronous policy gives the
reference's actions, advantages, gradients and parameters (design, section 5)."""

import dataclasses
import functools
import itertools
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest

from mindspore_rl import programs
from mindspore_rl.checking import compared, held, plain
from mindspore_rl.compiler.partition.partition import Partition
from mindspore_rl.compiler.pipeline import JobRequest, environment_for, prepare
from mindspore_rl.config import REQUIRED
from mindspore_rl.errors import MsrlError
from mindspore_rl.jobs import registry
from mindspore_rl.plan.plan import Plan
from mindspore_rl.policy import Schedule
from mindspore_rl.runtime.coordinator.run import JobOptions, run_job
from tests.compiler import inproc
from tests.compiler.reading_back import read_back
from tests.datasets.files import played
from tests.multiprocess import theorem
from tests.tiers import quick

ROOT = Path(__file__).parent.parent
PROGRAMS = ROOT / "programs"
ITERATIONS = 3
CARTPOLE = ("CartPole-v1", "graph:CartPole-v1")
PENDULUM = ("Pendulum-v1", "graph:Pendulum-v1")
GAMES = ("graph:TicTacToe-v0", "graph:ConnectFour-v0")
PARTICLES = ("graph:simple_spread_v3", "graph:simple_tag_v3", "pettingzoo:mpe2.simple_spread_v3")
SMALL = {"num_envs": 8, "num_steps": 10, "num_minibatches": 2, "update_epochs": 2}
SMALL_REPLAY = {"num_envs": 8, "replay_size": 160, "updates": 4, "batch_size": 16}
OF_DATA = {"dataset": "of the environment", "num_steps": 4, "updates": 2, "batch_size": 16}
STARTED = {"learning_starts": 64, "replay_size": 160}
FILLED = {"learning_starts": 16, "replay_size": 40}
EIGHT_STEPS = {"num_steps": 8, "num_minibatches": 2, "update_epochs": 2}
PHASES = {"phase_iterations": 2, "aux_minibatches": 2, "aux_epochs": 2}
SEQUENCES = {"num_steps": 4, "learnt_steps": 6, "burn_in": 4, "replay_size": 16, "state_size": 12}
PLANS = {"simulations": 3, "max_depth": 2, "value_scale": 0.01}
SEARCH = {**PLANS, "unroll": 3, "n_step": 4}
IMAGINED = {"num_steps": 4, "window": 3, "horizon": 3, "learning_starts": 32, "replay_size": 160}
MODEL = {"model_updates": 2, "rollouts": 2, "imagined_size": 40}
BOTH = ("CartPole-v1", "graph:CartPole-v1", "graph:Pendulum-v1")
ALGORITHMS = {
    "ppo": ({"num_steps": 32, "update_epochs": 2}, (*CARTPOLE, *PENDULUM)),
    "a2c": ({}, CARTPOLE),
    "impala": ({}, CARTPOLE),
    "rnd": (EIGHT_STEPS, CARTPOLE),
    "ppg": (EIGHT_STEPS | PHASES, BOTH),
    "trpo": ({"num_steps": 16, "value_epochs": 2}, BOTH),
    "mappo": (SMALL, PARTICLES),
    "vdn": (
        {"num_steps": 5, "learning_starts": 40, "target_every": 2, **SMALL_REPLAY},
        PARTICLES[::2],
    ),
    "coma": ({"num_envs": 8, "num_steps": 10, "num_minibatches": 2, "critic_epochs": 2}, PARTICLES),
    "maddpg": ({"num_steps": 5, "learning_starts": 40, **SMALL_REPLAY}, PARTICLES[::2]),
    "dqn": (STARTED | {"target_every": 2}, CARTPOLE),
    "qr_dqn": (STARTED | {"target_every": 2}, CARTPOLE),
    "r2d2": (STARTED | SEQUENCES | {"target_every": 2}, CARTPOLE),
    "discrete_sac": (STARTED | {"updates": 4}, CARTPOLE),
    "muzero": (STARTED | SEARCH | {"updates": 2, "batch_size": 16, "target_every": 2}, CARTPOLE),
    "alphazero": (EIGHT_STEPS | {"num_envs": 6, **PLANS}, GAMES),
    "dreamer": (IMAGINED | {"updates": 2, "batch_size": 16}, CARTPOLE),
    "sac": (FILLED | {"updates": 4}, PENDULUM),
    "diayn": (FILLED | {"updates": 2}, PENDULUM),
    "mbpo": (FILLED | MODEL | {"updates": 2}, PENDULUM),
    "td3": (FILLED | {"policy_updates": 2}, PENDULUM),
    "decision_transformer": ({**OF_DATA, "width": 16}, ("CartPole-v1", "graph:Pendulum-v1")),
    "gail": ({"dataset": OF_DATA["dataset"], "num_steps": 16, "update_epochs": 2}, BOTH),
    "bc": (OF_DATA, ("CartPole-v1", "graph:Pendulum-v1")),
    "iql": (OF_DATA, PENDULUM),
    "cql": (OF_DATA, PENDULUM),
    str(PROGRAMS / "two_phase.py"): ({}, CARTPOLE),
    str(PROGRAMS / "early_ends.py"): ({}, CARTPOLE),
    str(PROGRAMS / "across.py"): ({}, CARTPOLE),
    str(PROGRAMS / "two_replays.py"): ({"by": "stratified", "own_batch": 16}, CARTPOLE),
}
"""The algorithms' configurations and environments.

SAC and TD3 make few updates: each step of Adam amplifies rounding, in 8 of SAC's up to 4e-4 of
16, in the 16 of TD3's default up to 8e-4 in 1 to 4 parameters of 768. MuZero's search divides
differences of values by their range, small in a network that has not learnt: a small `value_scale`.
"""
SEARCHES = ("muzero", "alphazero")
"""Algorithms whose search amplifies rounding, on some processors beyond the tolerance: there what a
millionth in parameters and gradients moves in the plain loop is allowed, as in `msrl check`."""
SHIPPED = (
    *("ppo", "a2c", "impala", "rnd", "mappo", "dqn", "qr_dqn", "r2d2", "sac", "td3"),
    *("discrete_sac", "muzero", "decision_transformer", "bc", "iql", "cql", "vdn"),
    *("gail", "ppg", "trpo", "diayn", "dreamer", "mbpo", "maddpg", "coma", "alphazero"),
)
OWN = {"torso", "state_size", "segment_steps", "her", "her_fraction"}
"""Options with their own tests: IMAGES, MEMORIES, GOALS."""
UNSET = {
    "target_kl": 1.3e-5, "popart": 0.4, "priority": 0.6, "atoms": 11, "munchausen": 0.9,
    "quantiles": 5, "epsilon": 0.5, "epsilon_alpha": 7.0, "rescale": 1e-2, "share_torso": True,
    "dataset": "of the environment", "skill": 1,
}  # fmt: skip
"""Values for options that are off by default; this KL ends some passes, by at least 1.1e-6."""
POLICIES = (
    "SingleLearnerCoarse", "MultipleLearners", "GPUOnly", "SingleLearnerFine", "Environments",
    "Central", str(PROGRAMS / "crossed.py"),
)  # fmt: skip
WORKERS = (1, 2, 3)
REFUSED = {("trpo", "Central")}
"""TRPO's learner decides on the workers' statistics, which Central does not send to its server."""
SUMS_OVER_AGENTS = ("vdn", "maddpg", "coma")
"""Algorithms that `Environments` takes with one worker only: it divides the agents."""
FIRST = {
    ("ppo", "SingleLearnerCoarse", "CartPole-v1", 3),
    ("ppo", "SingleLearnerCoarse", "graph:Pendulum-v1", 1),
    ("ppo", "MultipleLearners", "Pendulum-v1", 3),
    ("ppo", "MultipleLearners", "CartPole-v1", 2),
    ("ppo", "GPUOnly", "graph:CartPole-v1", 3),
    ("ppo", "GPUOnly", "graph:Pendulum-v1", 2),
    ("ppo", "GPUOnly", "graph:CartPole-v1", 1),
    ("ppo", "SingleLearnerFine", "CartPole-v1", 2),
    ("ppo", "Central", "CartPole-v1", 2),
    ("ppo", "Environments", "CartPole-v1", 2),
    ("rnd", "MultipleLearners", "CartPole-v1", 2),
    ("mappo", "Environments", "graph:simple_tag_v3", 2),
    ("mappo", "GPUOnly", "graph:simple_spread_v3", 1),
    ("vdn", "MultipleLearners", "graph:simple_spread_v3", 2),
    ("dqn", "SingleLearnerCoarse", "CartPole-v1", 3),
    ("dqn", "GPUOnly", "graph:CartPole-v1", 2),
    ("qr_dqn", "MultipleLearners", "CartPole-v1", 2),
    ("r2d2", "SingleLearnerCoarse", "CartPole-v1", 2),
    ("r2d2", "GPUOnly", "graph:CartPole-v1", 1),
    ("discrete_sac", "SingleLearnerCoarse", "CartPole-v1", 2),
    ("muzero", "MultipleLearners", "CartPole-v1", 2),
    ("alphazero", "SingleLearnerCoarse", "graph:TicTacToe-v0", 2),
    ("sac", "MultipleLearners", "Pendulum-v1", 2),
    ("td3", "SingleLearnerCoarse", "Pendulum-v1", 2),
    ("diayn", "MultipleLearners", "Pendulum-v1", 1),
    ("decision_transformer", "MultipleLearners", "CartPole-v1", 2),
    (str(PROGRAMS / "two_phase.py"), str(PROGRAMS / "crossed.py"), "CartPole-v1", 1),
    (str(PROGRAMS / "two_phase.py"), "SingleLearnerCoarse", "graph:CartPole-v1", 2),
    (str(PROGRAMS / "two_phase.py"), "GPUOnly", "graph:CartPole-v1", 2),
    (str(PROGRAMS / "early_ends.py"), "Central", "CartPole-v1", 2),
    (str(PROGRAMS / "across.py"), "MultipleLearners", "CartPole-v1", 3),
    (str(PROGRAMS / "two_replays.py"), "GPUOnly", "graph:CartPole-v1", 2),
}
"""The first case of an algorithm under a policy; all its options have other values."""
MARKS = {"as-trained": (), "recorded": theorem.MARKS}
"""Each case runs as it trains, and with values recorded at marks, which divide loops into other
cells."""
QUICK = {
    ("dqn", "SingleLearnerCoarse", "CartPole-v1", 3): ("as-trained",),
    ("a2c", "Environments", "CartPole-v1", 2): ("recorded",),
    ("a2c", "Central", "CartPole-v1", 2): ("as-trained",),
}
"""On ranks: every policy of `distribution`, but GPUOnly, and two and three workers once.

GPUOnly with one worker, which is no other process, is in `tests/checking/test_check.py`.

PPG and TRPO run as threads, in `tests/test_on_policy.py`.

Below are MultipleLearners with MindSpore's cells, PPO under SingleLearnerFine in chunks, and IMPALA
with a lag and images.
"""
SHORT = {"learnt_steps": 4, "burn_in": 2, "learning_starts": 32}
SHORT_SEARCH = {
    "num_steps": 4, "learning_starts": 32, "unroll": 2, "n_step": 2, "updates": 1, "simulations": 2,
}  # fmt: skip
FEW_MOVES = {"num_steps": 2, "simulations": 2, "update_epochs": 1}
FEW_STEPS = {"num_steps": 4, "num_minibatches": 2, "update_epochs": 1}
IN_PROCESS = {
    ("mappo", "Environments", "graph:simple_tag_v3", 2): FEW_STEPS,
    ("rnd", "MultipleLearners", "CartPole-v1", 2): FEW_STEPS,
    ("vdn", "MultipleLearners", "graph:simple_spread_v3", 2): {"updates": 2},
    ("r2d2", "SingleLearnerCoarse", "CartPole-v1", 2): SHORT,
    ("muzero", "MultipleLearners", "CartPole-v1", 2): SHORT_SEARCH,
    ("alphazero", "SingleLearnerCoarse", "graph:TicTacToe-v0", 2): FEW_MOVES,
    ("decision_transformer", "MultipleLearners", "CartPole-v1", 2): {},
    ("iql", "MultipleLearners", "Pendulum-v1", 2): {},
    ("sac", "MultipleLearners", "Pendulum-v1", 2): {"updates": 2},
}
"""Without `--all` only in this process. docs/contributing.md names what is in neither.

MindSpore's eager mode takes the time, so some do less.
"""

DATA_SETS = tempfile.TemporaryDirectory()
"""The folder of the data sets that programs read."""


def _other(name, value):
    """Returns a value of an option that is not its default."""
    if not value and not isinstance(value, bool):
        return UNSET[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return value[:1]
    return (value // 2 or 2) if isinstance(value, int) else 0.5 * value


@functools.cache
def _options(algorithm):
    """Returns each option of a shipped algorithm, with a value other than its default."""
    if algorithm not in SHIPPED:
        return {}
    fields = dataclasses.fields(programs.trainer_class(registry.find_algorithm(algorithm)).Config)
    fixed = {"env", *OWN, *REQUIRED, *ALGORITHMS[algorithm][0]}
    return {f.name: _other(f.name, f.default) for f in fields if f.name not in fixed}


def _rows(options):
    """Chooses options with other values: all, none, and for any two one without the other.

    Of sets with equally many rows, none contains another (Sperner 1928).
    """
    yield options
    yield {}
    rows = next(n for n in itertools.count() if math.comb(n, n // 2) >= len(options))
    columns = list(zip(options, itertools.combinations(range(rows), rows // 2), strict=False))
    for row in range(rows):
        yield {name: options[name] for name, column in columns if row in column}


def _cases():
    """Yields algorithm, policy, environment, workers and options."""
    for algorithm, (_, environments) in ALGORITHMS.items():
        every, none, *mixed = _rows(_options(algorithm))
        turn = itertools.cycle(mixed or [none])
        for policy in (name for name in POLICIES if (algorithm, name) not in REFUSED):
            chosen = [e for e in environments if policy != "GPUOnly" or e.startswith("graph:")]
            together = policy == "Environments" and algorithm in SUMS_OVER_AGENTS
            workers = (1,) if together or policy.endswith("crossed.py") else WORKERS
            cases = [(algorithm, policy, *rest) for rest in itertools.product(chosen, workers)]
            cases.sort(key=lambda case: (case not in FIRST, -case[3]))
            for case, options in zip(cases, itertools.chain((every, none), turn), strict=False):
                yield *case, options


def _parameters():
    for *case, options in _cases():
        algorithm, policy, environment, workers = case
        name = f"{Path(algorithm).stem}-{Path(policy).stem}-{environment}-{workers}"
        for how, marks in MARKS.items():
            tier = () if how in QUICK.get(tuple(case), ()) else (pytest.mark.slow,)
            tier = (pytest.mark.multiprocess, *tier)
            yield pytest.param(*case, options, marks, id=f"{name}-{how}", marks=tier)


both_ways = pytest.mark.parametrize(
    "marks",
    [
        pytest.param(MARKS["as-trained"], id="as-trained"),
        pytest.param(MARKS["recorded"], id="recorded", marks=pytest.mark.slow),
    ],
)


@pytest.mark.parametrize("algorithm", SHIPPED)
def test_every_option_meets_every_other_and_every_policy(algorithm):
    """Every option occurs with every environment and number of workers, default and changed."""
    options = _options(algorithm)
    seen, possible = set(), set()
    for name, policy, environment, workers, chosen in _cases():
        if name == algorithm:
            where = (policy, environment, workers)
            values = {(option, option in chosen) for option in options}
            seen |= set(itertools.product((*where, *values), values))
            possible |= {*where}
    values = set(itertools.product(options, (True, False)))
    wanted = set(itertools.product((*possible, *values), values))
    wanted -= {((name, on), (name, not on)) for name, on in values}
    assert wanted - seen == set()


@functools.cache
def _data_set(environment: str) -> str:
    python = environment.removeprefix("graph:")  # with the same observations and actions
    return str(played(Path(DATA_SETS.name) / environment.replace(":", "_"), python))


def request_for(
    algorithm: str, policy: str, environment: str, workers: int, options: dict | None = None
) -> JobRequest:
    file = registry.find_algorithm(algorithm)
    chosen_options = {**ALGORITHMS[algorithm][0], **(options or {})}
    if "dataset" in chosen_options:
        chosen_options["dataset"] = _data_set(environment)
    config = programs.trainer_class(file).Config(env=environment, **chosen_options)
    chosen = registry.load_policy(registry.find_policy(policy))
    assert environment_for(chosen, environment) == environment
    return JobRequest(
        file,
        chosen,
        config,
        workers,
        timeout_s=240.0,  # this compares numbers, also on busy machines
        num_iterations=ITERATIONS,
        record=theorem.MARKS,
    )


@pytest.fixture(scope="session")
def references(tmp_path_factory):
    """Runs each reference once: it does not depend on policy and workers."""
    known: dict[tuple, theorem.ReferenceRun] = {}

    def get(
        request: JobRequest, plan: Plan, cut: Partition, once: bool = False
    ) -> theorem.ReferenceRun:
        carried = held.names_in_source(plan, cut)
        lag = request.policy.schedule.lag
        key = (str(request.algorithm), request.config, lag, once, *carried.items())
        if key not in known:
            folder = tmp_path_factory.mktemp("reference")
            known[key] = theorem.run_reference(
                request.algorithm, request.config, folder, ITERATIONS, carried, lag, once
            )
        return known[key]

    return get


@pytest.mark.parametrize(
    ("algorithm", "policy", "environment", "workers", "options", "marks"), list(_parameters())
)
def test_equals_reference(
    algorithm, policy, environment, workers, options, marks, references, tmp_path
):
    request = request_for(algorithm, policy, environment, workers, options)
    _check(request, marks, references, tmp_path)


@pytest.mark.parametrize(
    ("algorithm", "policy", "environment", "workers", "options"),
    [
        pytest.param(*case, options | IN_PROCESS[tuple(case)], id="-".join(map(str, case)))
        for *case, options in _cases()
        if tuple(case) in IN_PROCESS
    ],
)
def test_equals_reference_in_process(algorithm, policy, environment, workers, options, tmp_path):
    _check_in_process(request_for(algorithm, policy, environment, workers, options), tmp_path)


@pytest.mark.multiprocess
@both_ways
@pytest.mark.parametrize(
    ("algorithm", "policy", "environment", "workers"),
    quick(
        [
            ("a2c", "MultipleLearners", "CartPole-v1", 2),
            ("ppo", "MultipleLearners", "CartPole-v1", 2),
            ("ppo", "GPUOnly", "graph:CartPole-v1", 2),
            ("ppo", "GPUOnly", "graph:Pendulum-v1", 3),
            ("dqn", "GPUOnly", "graph:CartPole-v1", 2),
            ("ppo", "SingleLearnerCoarse", "CartPole-v1", 2),
            ("ppo", "SingleLearnerFine", "CartPole-v1", 2),
            ("ppo", "Central", "CartPole-v1", 2),
            ("mappo", "Environments", "graph:simple_tag_v3", 2),
        ],
        0,
    ),
)
def test_mindspores_own_cells(algorithm, policy, environment, workers, marks, references, tmp_path):
    """MindSpore runs the cells, with its group in them: no other test takes the GPU's path."""
    request = request_for(algorithm, policy, environment, workers)
    _check(dataclasses.replace(request, cells="mindspore"), marks, references, tmp_path)


LAYER = {"num_steps": 16, "segment_steps": 4, "update_epochs": 2, "state_size": 12, "hidden": (8,)}
MEMORIES = {torso: LAYER | {"torso": torso} for torso in ("gru", "lstm")}
"""Episodes of CartPole's first policies end within a segment, and between two iterations."""


@pytest.mark.multiprocess
@both_ways
@pytest.mark.parametrize(
    ("policy", "environment", "workers", "chunks", "torso"),
    quick(
        [
            ("SingleLearnerFine", "CartPole-v1", 2, 2, ""),
            ("SingleLearnerFine", "CartPole-v1", 2, 2, "lstm"),
            ("SingleLearnerFine", "Pendulum-v1", 3, 2, ""),
            ("Environments", "CartPole-v1", 2, 3, ""),
        ],
        0,
    ),
)
def test_chunks_equal_reference(
    policy, environment, workers, chunks, torso, marks, references, tmp_path
):
    request = request_for("ppo", policy, environment, workers, MEMORIES.get(torso))
    schedule = Schedule(chunks=chunks)
    request = dataclasses.replace(
        request, policy=dataclasses.replace(request.policy, schedule=schedule)
    )
    _check(request, marks, references, tmp_path)


OLDER_IMAGES = {"torso": "cnn", "hidden": (16,), "num_envs": 6, "num_steps": 4}


@pytest.mark.multiprocess
@both_ways
@pytest.mark.parametrize(
    ("algorithm", "policy", "environment", "workers", "lag"),
    quick(
        [
            ("impala", "SingleLearnerCoarse", "probe:pixels", 2, 1),
            ("impala", "SingleLearnerCoarse", "CartPole-v1", 2, 1),
            ("ppo", "SingleLearnerCoarse", "CartPole-v1", 2, 1),
            ("ppo", "SingleLearnerCoarse", "Pendulum-v1", 3, 2),
            ("a2c", str(PROGRAMS / "crossed.py"), "CartPole-v1", 1, 1),
            ("dqn", "SingleLearnerCoarse", "CartPole-v1", 2, 1),
            ("sac", "SingleLearnerCoarse", "graph:Pendulum-v1", 1, 1),
            ("a2c", "SingleLearnerFine", "CartPole-v1", 1, 1),
            ("a2c", "GPUOnly", "graph:CartPole-v1", 2, 1),
            ("ppo", "GPUOnly", "graph:Pendulum-v1", 1, 2),
            ("ppo", "MultipleLearners", "CartPole-v1", 2, 1),
            ("ppo", "SingleLearnerFine", "CartPole-v1", 2, 1),
            ("ppo", "Central", "CartPole-v1", 2, 1),
            ("mappo", "Environments", "graph:simple_tag_v3", 2, 1),
            ("sac", "MultipleLearners", "Pendulum-v1", 2, 1),
            ("decision_transformer", "SingleLearnerFine", "CartPole-v1", 1, 1),
        ],
        0,
    ),
)
def test_actors_that_run_ahead_equal_a_reference_with_a_lag(
    algorithm, policy, environment, workers, lag, marks, references, tmp_path
):
    options = OLDER_IMAGES if environment == "probe:pixels" else None
    request = request_for(algorithm, policy, environment, workers, options)
    policy = dataclasses.replace(request.policy, schedule=Schedule(lag=lag))
    _check(dataclasses.replace(request, policy=policy), marks, references, tmp_path)


CHOICES = ("probe:choice", f"{ROOT / 'environments' / 'choices.py'}:GraphChoice")
"""An invalid action ends the run, so exploration takes valid ones only, too."""
MASKED = ("ppo", "a2c", "impala", "ppg", "trpo", "dqn", "qr_dqn", "r2d2", "discrete_sac", "muzero")
HINDSIGHT = {"her": 5, "num_steps": 6, "learning_starts": 16, "hidden": (8,)}
GOALS = {
    "dqn": ("probe:bits", {**HINDSIGHT, "n_step": 2, "updates": 2}),
    "sac": ("probe:reach", HINDSIGHT),
    "td3": ("probe:reach", HINDSIGHT),
}
"""Learning in hindsight: windows whose goals are replaced."""
SEEN = {"hidden": (16,), "update_epochs": 2}
IMAGES = {
    "cnn": SEEN | {"torso": "cnn", "num_envs": 6, "num_steps": 4},
    "impala": SEEN | {"torso": "impala", "num_envs": 4, "num_steps": 16},
}
"""`_check` verifies that convolutions are native, too."""
SHIPPED_POLICIES = POLICIES[:-1]
OUTSIDE = [policy for policy in SHIPPED_POLICIES if policy != "GPUOnly"]
"""Policies of what has no form in the graph: environments with goals or images."""


def _with_options():
    """Yields names, and cases of masks, goals, images and memories."""
    masked = [*itertools.product(MASKED, SHIPPED_POLICIES, (1, 3))]
    for name, policy, workers in [*masked, ("ppo", OUTSIDE[0], 2), ("dqn", "GPUOnly", 2)]:
        options = {"normalise_obs": True} if name == "ppo" else {}
        if (name, policy) not in REFUSED:
            yield "masks", (name, policy, CHOICES[policy == "GPUOnly"], workers, options)
    for (name, goal), policy, workers in itertools.product(GOALS.items(), OUTSIDE, (1, 2, 3)):
        yield "goals", (name, policy, goal[0], workers, goal[1])
    for torso, policy in itertools.product(IMAGES, OUTSIDE):
        yield torso, ("ppo", policy, "probe:pixels", 2, IMAGES[torso])
    yield "cnn", ("ppo", OUTSIDE[0], "probe:pixels", 3, IMAGES["cnn"])
    for torso, policy, workers in itertools.product(MEMORIES, SHIPPED_POLICIES, (2, 3)):
        options = {**MEMORIES[torso], "normalise_obs": torso == "gru"}
        yield torso, ("ppo", policy, CARTPOLE[policy == "GPUOnly"], workers, options)


@pytest.mark.multiprocess
@pytest.mark.slow
@both_ways
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{name}-{case[0]}-{case[1]}-{case[3]}")
        for name, case in _with_options()
    ],
)
def test_other_options_equal_reference(case, marks, references, tmp_path):
    _check(request_for(*case), marks, references, tmp_path)


def test_masks_equal_reference_in_process(tmp_path):
    options = FEW_STEPS | {"normalise_obs": True}
    request = request_for("ppo", "SingleLearnerCoarse", CHOICES[0], 2, options)
    _check_in_process(request, tmp_path)


def _check_in_process(request, tmp_path):
    """Ranks are threads, and cells run as plain Python."""
    request = dataclasses.replace(request, compiled=False, num_iterations=2)
    assert inproc.differences(request, tmp_path) == []
    records = [dict(np.load(file)) for file in (tmp_path / "run" / "records").glob("*.npz")]
    assert any("boundary:gradient" in site for record in records for site in record)


def _check(request, marks, references, tmp_path, once=True):
    request = dataclasses.replace(request, record=marks)
    plan, cut = theorem.prepare(request, tmp_path, read_back)
    reference = references(request, plan, cut, once)
    assert {"action", "gradient"} <= {compared.mark_of(site) for _, site in reference.records}
    native, found = held.run_held(plan, tmp_path, reference, ITERATIONS)
    if once and any(one.wrong for one in found):
        agreed = references(request, plan, cut)
        if not plain.same(reference, agreed):
            _check(request, marks, references, tmp_path / "again", once=False)
            return
    assert {"variables/", "parameters/"} <= {one.name.split("/")[0] + "/" for one in found}
    wrong = [one for one in found if one.wrong]
    if wrong and request.algorithm.stem in SEARCHES:
        carried = held.names_in_source(plan, cut)
        moved = plain.rounding_alone(wrong, request.algorithm, request.config, reference, carried)
        wrong = [one for one in wrong if not plain.is_rounding(one, moved[one])]
    assert [str(one) for one in wrong] == []
    expected = [f"cells/{f.name}/{cell}" for f in plan.fragments for cell in f.cells]
    assert sorted(native) == (sorted(expected) if plan.cells == "native" else [])
    assert all(native.values())
    theorem.sent_as_predicted(plan, tmp_path)


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "policy", "environment"),
    [
        ("a2c", "MultipleLearners", "CartPole-v1"),
        ("ppo", "MultipleLearners", "CartPole-v1"),
        ("ppo", "GPUOnly", "graph:CartPole-v1"),
    ],
)
def test_runs_freely(algorithm, policy, environment, references, tmp_path):
    """Without loading the reference's state between iterations, rounding may grow but not jump."""
    request = request_for(algorithm, policy, environment, 2)
    plan, cut = prepare(request, tmp_path)
    reference = references(request, plan, cut)
    outcome = run_job(plan, tmp_path, JobOptions(progress=False, total_steps=0))
    assert theorem.compare(tmp_path, reference, 1) == []
    assert theorem.compare(tmp_path, reference, ITERATIONS, ("action",)) == []
    wrong = theorem.compare_states(
        Path(outcome.checkpoint),
        reference.checkpoints[-1],
        "parameters/actor",
        rtol=1e-3,
        atol=1e-4,
    )
    assert wrong == []


@pytest.mark.parametrize(
    ("got", "wanted", "equal"),
    [
        (1.0, 1.0, True),
        (math.nan, math.nan, True),
        (math.inf, math.inf, True),
        (math.nan, 1.0, False),
        (1.0, math.nan, False),
        (math.inf, -math.inf, False),
    ],
)
def test_numbers_that_are_not_finite_are_told_apart(got, wanted, equal):
    values = (np.array([2.0, number], np.float32) for number in (got, wanted))
    assert (theorem._differences("site", *values) == []) == equal


def test_more_replicas_than_environments(tmp_path):
    request = dataclasses.replace(
        request_for("ppo", "SingleLearnerCoarse", "CartPole-v1", 1), workers=9
    )
    with pytest.raises(MsrlError, match="9 replicas of actor for 8 environments"):
        prepare(request, tmp_path)
