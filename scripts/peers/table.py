"""The rows of `scripts/benchmark.py --peers`: workloads, programs and targets.

A peer gets the configuration of our algorithm as JSON, so that networks, epochs, minibatches and
hyper-parameters are the same.
"""

import importlib
import json
import sys
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import yaml
from study import ROOT, msrl

PEERS = ROOT / ".peers"
FOREVER = 1_000_000_000
"""Environment steps of a run that the benchmark terminates."""
OURS = "mindspore_rl"


@dataclass(frozen=True)
class Program:
    """A program to run.

    Args:
        name: the name in the table.
        commands: its argument lists; with several, each turn takes the next one.
        venv: its virtual environment under .peers/; None: our own.
        cores: the cores of `taskset`; None: all.
        cold: True: it starts with an empty cache.
        gpu: True: it may use a GPU.
        threads: PyTorch's threads; None: its default.
        says: the text that it prints at the end if it succeeded.
        before: a command that makes the files that it reads.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    venv: str | None = None
    cores: str | None = None
    cold: bool = False
    gpu: bool = False
    threads: int | None = None
    says: str = ""
    before: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """The target of a row.

    Args:
        bound: the smallest ratio of ours to theirs, the largest for times; without `against`, a
            bound on ours alone.
        goal: the same for a stricter target.
        against: names of programs, of which the best counts.
    """

    bound: float
    goal: float | None = None
    against: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A row: programs to run in turn, ours first.

    Args:
        name: the name for `--only`.
        work: a description.
        programs: the programs, ours first.
        targets: the targets.
        steps: environment steps per iteration, for peers that count iterations only.
        unit: the measured quantity: `steps/s`, when warm; `s`, of a whole process; `return`, the
            mean of the last 100 episodes at the end.
    """

    name: str
    work: str
    programs: tuple[Program, ...]
    targets: tuple[Target, ...]
    steps: int
    unit: str = "steps/s"


@dataclass(frozen=True)
class Task:
    """A run of one of our algorithms; the keys of its configuration that are not its defaults."""

    algorithm: str
    env: str
    num_envs: int
    num_steps: int
    keys: dict[str, Any] = field(default_factory=dict)

    def _keys(self) -> dict[str, Any]:
        shape = {"env": self.env, "num_envs": self.num_envs, "num_steps": self.num_steps}
        return {"total_steps": FOREVER} | shape | self.keys

    def config(self) -> dict[str, Any]:
        """Returns the whole configuration."""
        module = importlib.import_module(f"algorithms.{self.algorithm}")
        return asdict(module.Config(**self._keys()))

    @property
    def steps(self) -> int:
        """Returns the environment steps of an iteration."""
        return self.num_envs * self.num_steps

    def ours(
        self, policy: str = "MultipleLearners", how: dict[str, Any] | None = None, **flags: Any
    ) -> Program:
        """Returns the run with `msrl train`, its options being `flags`; `how`: of `Program`."""
        keys = self._keys()
        flags = {"policy": policy, "device": "cpu", "env": keys.pop("env")} | flags
        flags = {"quiet": True, "stop_return": "nan", "config": "none"} | flags
        command = msrl("train", self.algorithm, keys=keys, **flags)
        return Program(**{"name": OURS, "commands": (tuple(command),)} | (how or {}))

    def sb3(self, library: str = "sb3", **more: Any) -> Program:
        """Returns the run with Stable-Baselines3, or with SBX, which is the same in JAX."""
        name = {"sb3": "SB3", "sbx": "SBX"}[library]
        return self._peer(name, "sb3", "sb3.py", library=library, algorithm=self.algorithm, **more)

    def appo(self, actors: int) -> Program:
        """Returns the run with Sample Factory's asynchronous PPO."""
        return self._peer("Sample Factory", "sample_factory", "appo.py", actors=actors)

    def rllib(self, **more: Any) -> Program:
        """Returns the run with RLlib."""
        return self._peer("RLlib", "rllib", "rllib.py", algorithm=self.algorithm, **more)

    def jax(self) -> Program:
        """Returns the same loop in JAX, in the graph."""
        return self._peer("JAX", "jax", "jax_loop.py")

    def transformer(self) -> Program:
        """Returns the updates of the decision transformer in PyTorch."""
        return self._peer("PyTorch", "sb3", "transformer.py")

    def cleanrl(self, file: str = "ppo", **more: str) -> Program:
        """Returns a file of CleanRL's, unmodified, for tasks with its networks and Adam's epsilon.

        Args:
            file: without `.py`.
            more: keys in place of the task's.
        """
        config = self.config() | more
        names = {"env": "env_id", "total_steps": "total_timesteps", "clip_value_loss": "clip_vloss"}
        names |= {"normalise_advantage": "norm_adv", "anneal_learning_rate": "anneal_lr"}
        same = "seed num_envs num_steps learning_rate gamma gae_lambda update_epochs"
        same += " num_minibatches clip_coef ent_coef vf_coef max_grad_norm"
        names |= {key: key for key in same.split()}
        flags = [(f"--{name.replace('_', '-')}", str(config[key])) for key, name in names.items()]
        words = tuple(word for flag in flags for word in flag)
        command = (_python("cleanrl"), "-u", "-m", f"cleanrl.{file}", *words)
        return Program("CleanRL", (command,), "cleanrl")

    def cleanrl_dqn(self) -> Program:
        """Returns CleanRL's unmodified dqn.py, with as many updates for each environment step."""
        config = self.config()
        each = config["num_envs"] * config["num_steps"] // config["updates"]
        flags = {"total-timesteps": FOREVER, "learning-starts": 1_000, "train-frequency": each}
        flags |= {"batch-size": config["batch_size"], "buffer-size": config["replay_size"]}
        words = [word for key, value in flags.items() for word in (f"--{key}", str(value))]
        return Program("CleanRL", (_cleanrl_dqn("inf", *words),), "cleanrl")

    def _peer(self, name: str, venv: str, script: str, **more: Any) -> Program:
        path = ROOT / "scripts" / "peers" / script
        config = json.dumps(self.config() | more)
        return Program(name, ((_python(venv), str(path), config),), venv)


def _python(venv: str) -> str:
    return str(PEERS / venv / "bin" / "python")


def _ppo(env: str, num_envs: int) -> Task:
    return Task("ppo", env, num_envs, 128)


def _either(program: Program) -> tuple[Program, Program]:
    """PyTorch with its default threads, and with one thread, which is faster at some sizes."""
    return program, replace(program, name=f"{program.name}, one thread", threads=1)


def _sb3s(task: Task) -> tuple[Program, ...]:
    return (*_either(task.sb3()), task.sb3("sbx"))


def _cleanrl_dqn(until: str, *flags: str) -> tuple[str, ...]:
    """The command of CleanRL's DQN until a mean return."""
    return (_python("cleanrl"), str(ROOT / "scripts" / "peers" / "cleanrl_dqn.py"), until, *flags)


def _in_turn(runs: list[Program], **how: Any) -> Program:
    """A program whose turns are these runs; `how`: other fields of it."""
    return replace(runs[0], commands=tuple(run.commands[0] for run in runs), **how)


def _row(
    name: str,
    work: str,
    task: Task,
    peers: tuple[Program, ...],
    target: Target,
    policy: str = "MultipleLearners",
    how: dict[str, Any] | None = None,
    **flags: Any,
) -> Row:
    """Ours beside peers, of which the best counts; `how` and `flags` are those of `Task.ours`."""
    ours = task.ours(policy, how, **flags)
    targets = (replace(target, against=tuple(peer.name for peer in peers)),)
    return Row(name, work, (ours, *peers), targets, task.steps)


def _beside_all(name: str, work: str, task: Task, bound: float) -> Row:
    peers = (*_sb3s(task), *_either(task.cleanrl()), task.rllib())
    return _row(name, work, task, peers, Target(bound))


def _beside_jax(name: str, work: str, task: Task, target: Target) -> Row:
    return _row(name, work, task, (task.jax(),), target, "GPUOnly")


def _scheduled(
    name: str, work: str, task: Task, other: str, bound: float, schedule: str, **flags: Any
) -> Row:
    """Ours with a schedule beside ours without one, whose name is `other`."""
    without = task.ours(how={"name": other}, **flags)
    return _row(name, work, task, (without,), Target(bound), schedule=schedule, **flags)


def _learns(name: str, work: str, tasks: list[Task], *targets: float) -> Row:
    """Mean returns of ours and SB3's, seed by seed; the last target is a ratio."""
    our = _in_turn([task.ours() for task in tasks])
    # With one thread, which is by far the fastest while anything else runs.
    their = _in_turn([task.sb3() for task in tasks], threads=1)
    *alone, ratio = targets
    bounds = (*map(Target, alone), Target(ratio, against=(their.name,)))
    return Row(name, work, (our, their), bounds, tasks[0].steps, unit="return")


def _solved(name: str, work: str, tasks: list[Task], theirs: Program, target: Target) -> Row:
    """Seconds to a mean return of 475, seed by seed."""
    our = _in_turn([task.ours(stop_return="475") for task in tasks], says="threshold: ")
    peers = _either(replace(theirs, says="solved"))
    target = replace(target, against=tuple(peer.name for peer in peers))
    return Row(name, work, (our, *peers), (target,), tasks[0].steps, unit="s")


def _configured(name: str, **more: Any) -> Task:
    """A run of a configuration of the project."""
    text = (ROOT / "algorithms" / "configs" / f"{name}.yaml").read_text()
    keys = yaml.safe_load(text) | more
    del keys["policy"]
    shape = (keys.pop(key) for key in ("algorithm", "env", "num_envs", "num_steps"))
    return Task(*shape, keys)


def _two_workers() -> Row:
    task = _ppo("CartPole-v1", 64)
    single, alone = "one worker, one core", "one worker, both cores"
    others = task.ours(how={"name": single, "cores": "0"}), task.ours(how={"name": alone})
    targets = Target(1.6, against=(single,)), Target(1.0, against=(alone,))
    work = "two workers on two cores, PPO CartPole, gym, 64 x 128"
    return Row("workers", work, (task.ours(workers=2), *others), targets, task.steps)


def _apex() -> list[Row]:
    keys = {"batch_size": 256, "n_step": 3, "epsilon_start": 0.4, "epsilon_end": 0.4}
    keys |= {"hidden": [120, 84]}  # CleanRL's
    keys |= {"priority": 0.6, "epsilon_alpha": 7.0}  # which the others have not
    flags = {"workers": 2, "schedule": "order=asynchronous"}
    task = Task("dqn", "CartPole-v1", 16, 8, keys | {"updates": 32})
    policy, waits = "SingleLearnerCoarse", "synchronous"
    theirs = (_either(task.cleanrl_dqn()), _either(task.rllib(actors=2)))
    programs = (
        task.ours(policy, **flags),
        task.ours(policy, {"name": waits}, workers=2),
        *(task.sb3(), task.sb3("sbx"), *theirs[0], *theirs[1]),
    )
    work = "DQN CartPole, 16 x 8, 32 updates of 256 (one for 4 steps): Ape-X with two actors and a "
    work += "learner; RLlib with two actors and priorities, the others without"
    tens = (Target(10.0, against=tuple(one.name for one in both)) for both in theirs)
    targets = Target(1.0, against=(waits,)), *tens
    many = Task("dqn", "CartPole-v1", 16, 32, keys | {"updates": 16})
    tables = (sys.executable, str(ROOT / "scripts" / "peers" / "tables_alone.py"))
    inserts = (many.ours(policy, **flags), Program("the tables alone", (tables,)))
    return [
        Row("apex", work, programs, targets, task.steps),
        Row(
            "apex-inserts",
            "Ape-X with an update for 32 steps, 16 x 32 (the target: 80 % of the 58,900 inserts/s "
            "that the tables alone did when it was set)",
            *(inserts, (Target(47_120.0),), many.steps),
        ),
    ]


def _transformer() -> Row:
    data = PEERS / "random.msrl"
    keys = {"dataset": str(data), "context": 20, "width": 128, "layers": 3, "heads": 1}
    keys |= {"batch_size": 64, "updates": 4}
    task = Task("decision_transformer", "CartPole-v1", 1, 16, keys)
    before = (sys.executable, str(ROOT / "scripts" / "peers" / "random_dataset.py"), str(data))
    work = "decision transformer, 3 layers of 128, 4 updates on 64 windows of 20 for 16 steps"
    peers = _either(task.transformer())
    return _row("transformer", work, task, peers, Target(1.5, 2.0), how={"before": before})


def _start(policy: str, env: str, cold: bool) -> Row:
    bounds = {"MultipleLearners": (5.0, 4.0), "GPUOnly": (7.0, 5.0)}[policy] if cold else (4.0,)
    task = Task("ppo", env, 8, 128, {"total_steps": 8 * 128})
    cache = "cold" if cold else "warm"
    return Row(
        f"start-{policy}-{cache}",
        f"whole process: `msrl train` of one iteration, {policy}, {env}, {cache} cache",
        (task.ours(policy, {"cold": cold}),),
        (Target(*bounds),),
        8 * 128,
        unit="s",
    )


SEEDS = (1, 2, 3)
SB3S_SAC = {"updates": 1, "learning_rate": 3e-4, "learning_starts": 100}
"""SB3's own settings."""
TD3 = {"hidden": [256, 256], "batch_size": 256, "policy_updates": 1, "learning_starts": 1000}
DDPG = {"twin": False, "policy_delay": 1, "smoothing": 0.0}
QR_DQN = {"updates": 80, "batch_size": 64, "learning_starts": 1000, "hidden": [120, 84]}
QR_DQN |= {"n_step": 1}
DQN = QR_DQN | {"double_q": False}  # SB3 and SBX have no double Q-learning


def _beside_jax_all() -> list[Row]:
    """Rows of environments in the graph."""
    pendulum, corridor = "graph:Pendulum-v1", "docs/examples/corridor.py:GraphCorridor"
    spread = Task("mappo", "graph:simple_spread_v3", 96, 25)
    own = "PPO, a user's in-graph environment (docs/examples/corridor.py), 64 x 128"
    sizes = {size: f"PPO in-graph CartPole, {size} x 128, one worker" for size in (8, 64, 256)}
    above, ahead = Target(1.5, 2.0), Target(1.2)
    return [
        *(
            _beside_jax(f"graph-{size}", work, _ppo("graph:CartPole-v1", size), above)
            for size, work in sizes.items()
        ),
        _beside_jax("pendulum", "PPO in-graph Pendulum, 64 x 128", _ppo(pendulum, 64), ahead),
        _beside_jax("corridor", own, _ppo(corridor, 64), ahead),
        _beside_jax("mappo", "MAPPO in-graph simple_spread, 96 x 25", spread, ahead),
    ]


def _asynchronous() -> list[Row]:
    """Rows of schedules, beside ours without one or another library's."""
    env = f"{ROOT / 'scripts' / 'peers' / 'uneven.py'}:make_uneven"
    coarse, four = {"policy": "SingleLearnerCoarse"}, {"workers": 4, "start_timeout": 120}
    impala = Task("impala", "CartPole-v1", 16, 16)
    flags = coarse | {"workers": 2, "schedule": "order=asynchronous"}
    return [
        _scheduled(
            "ahead",
            "PPO CartPole, gym, 64 x 128, 16 epochs, an actor ahead of a learner (lag=1)",
            Task("ppo", "CartPole-v1", 64, 128, {"update_epochs": 16}),
            *("lag=0", 1.6, "lag=1"),
            **coarse,
        ),
        *(
            _scheduled(
                name,
                f"IMPALA CartPole, 16 x {steps}, four actors, a step takes 1 ms, one in fifty "
                "50 ms",
                Task("impala", env, 16, steps),
                *("synchronous", 2.4, "order=asynchronous,staleness=64"),
                **(coarse | four),
            )
            for name, steps in (("uneven", 5), ("uneven-short", 2))
        ),
        _scheduled(
            "uneven-steps",
            "the same, 16 x 256, a learner that acts for each worker once it is ready (act_for=1)",
            Task("impala", env, 16, 256),
            *("act_for=0", 2.4, "act_for=1"),
            **({"policy": "SingleLearnerFine"} | four),
        ),
        _row(
            "impala",
            "IMPALA CartPole, 16 x 16, two asynchronous actors and a learner on two cores",
            *(impala, (impala.appo(actors=2), impala.rllib(actors=2)), Target(2.0)),
            **flags,
        ),
    ]


def _in_python() -> list[Row]:
    """Rows beside SB3 and SBX, of HalfCheetah and images."""
    cheetah = _configured("ppo_halfcheetah", total_steps=FOREVER)
    keys = {"hidden": (512, 512), "num_minibatches": 4, "total_steps": FOREVER}
    wide = _configured("ppo_halfcheetah", **keys)
    keys = {"hidden": (1024, 1024), "num_minibatches": 4, "total_steps": FOREVER}
    keys |= {"num_envs": 16, "num_steps": 1024, "update_epochs": 1}
    widest = _configured("ppo_halfcheetah", **keys)
    env = f"{ROOT / 'docs' / 'examples' / 'pong.py'}:make_pong"
    pong = _configured("ppo_atari", env=env, total_steps=FOREVER)
    keys = {"torso": "impala", "hidden": (256,), "total_steps": FOREVER}
    residual = _configured("ppo_atari", env=env, **keys)
    env = "envpool:Pong-v5,episodic_life=true,reward_clip=true"  # as CleanRL's file asks EnvPool
    pool = _configured("ppo_atari", env=env, total_steps=FOREVER)
    two = "ours on two workers"
    return [
        _row(
            "cheetah",
            "PPO HalfCheetah-v4, 8 x 256, 10 epochs x 32 minibatches",
            *(cheetah, _sb3s(cheetah), Target(2.0, 3.0)),
        ),
        _row(
            "cheetah-512",
            f"PPO HalfCheetah-v4, networks of 512-512, 8 x 256, 10 epochs x 4 minibatches; {two}",
            *(wide, _sb3s(wide), Target(1.8, 2.2)),
            workers=2,
        ),
        _row(
            "cheetah-1024",
            "PPO HalfCheetah-v4, networks of 1024-1024, 16 x 1024, an epoch of minibatches of 4096",
            *(widest, _sb3s(widest), Target(1.0)),
        ),
        _row(
            "pong",
            "PPO Pong, images of 84 x 84 x 4, Nature CNN, 8 x 128, 3 epochs x 4 minibatches; "
            + two,
            *(pong, _either(pong.sb3()), Target(2.0, 3.0)),
            start_timeout=300,
            workers=2,
        ),
        _row(
            "pong-envpool",
            f"PPO Pong in EnvPool, Nature CNN, 8 x 128, 3 epochs x 4 minibatches; {two}",
            pool,
            _either(pool.cleanrl("ppo_atari_envpool", env="Pong-v5")),
            Target(1.5, 2.5),
            start_timeout=300,
            workers=2,
        ),
        _row(
            "pong-impala",
            f"PPO Pong as above, IMPALA's residual torso and 256 features; {two}",
            *(residual, _either(residual.sb3()), Target(1.5, 2.0)),
            start_timeout=300,
            workers=2,
        ),
    ]


def _learnt() -> list[Row]:
    """Rows of what was learnt, and of the time until something is."""
    keys, short = SB3S_SAC | {"total_steps": 100_000}, {"total_steps": 500_000}
    cheetahs = [_configured("ppo_halfcheetah", seed=seed) for seed in SEEDS]
    sacs = [Task("sac", "HalfCheetah-v4", 1, 1, keys | {"seed": seed}) for seed in SEEDS]
    ppos = [Task("ppo", "CartPole-v1", 8, 128, {"seed": seed} | short) for seed in SEEDS]
    short = {"total_steps": 200_000}
    dqns = [Task("dqn", "CartPole-v1", 8, 10, {"seed": seed} | short) for seed in SEEDS]
    sb3 = _in_turn([task.sb3(stop_return=475.0) for task in ppos])
    cleanrl = tuple(_cleanrl_dqn("475", "--seed", str(seed)) for seed in SEEDS)
    return [
        _learns(
            "cheetah-learns",
            "mean return of PPO on HalfCheetah-v4 after 300,000 steps, seeds 1 to 3",
            *(cheetahs, 1000.0, 1.0),
        ),
        _learns(
            "sac-learns",
            "mean return of SAC on HalfCheetah-v4 in 100,000 steps, seeds 1 to 3",
            *(sacs, 1.0),
        ),
        _solved(
            "solved",
            "whole process: PPO CartPole to a mean return of 475, seeds 1 to 3",
            *(ppos, sb3, Target(0.7, 0.5)),
        ),
        _solved(
            "dqn-solved",
            "whole process: DQN CartPole to a mean return of 475, each at its defaults, "
            "seeds 1 to 3",
            *(dqns, Program("CleanRL", cleanrl, "cleanrl"), Target(1 / 3)),
        ),
    ]


def rows() -> list[Row]:
    """Returns all rows."""
    a2c, dqn = Task("a2c", "CartPole-v1", 8, 5), Task("dqn", "CartPole-v1", 8, 10, DQN)
    sac = Task("sac", "HalfCheetah-v4", 1, 1, SB3S_SAC)
    td3 = Task("td3", "HalfCheetah-v4", 1, 2, TD3)
    tqc = Task("sac", "HalfCheetah-v4", 1, 1, SB3S_SAC | {"quantiles": 25})
    ddpg = Task("td3", "HalfCheetah-v4", 1, 1, TD3 | DDPG)
    qr_dqn = Task("qr_dqn", "CartPole-v1", 8, 10, QR_DQN)
    starts = {"MultipleLearners": "CartPole-v1", "GPUOnly": "graph:CartPole-v1"}.items()
    each = "one environment, an update of 256 a step"
    nets = "{} CartPole, 8 x 10, networks of 120-84, an update of 64 a step"
    return [
        *(
            _beside_all(
                f"gym-{size}",
                f"PPO CartPole, gym, {size} x 128, one worker",
                *(_ppo("CartPole-v1", size), bound),
            )
            for size, bound in ((8, 6.0), (64, 3.5))
        ),
        _two_workers(),
        *_asynchronous(),
        *_apex(),
        *_in_python(),
        *_beside_jax_all(),
        _row("a2c", "A2C CartPole, gym, 8 x 5", a2c, _either(a2c.sb3()), Target(6.0)),
        _row("sac", f"SAC HalfCheetah-v4, {each}", sac, _sb3s(sac), Target(2.0, 3.0)),
        _row("td3", f"TD3 HalfCheetah-v4, {each}", td3, _sb3s(td3), Target(2.0, 3.0)),
        _row("tqc", f"TQC HalfCheetah-v4, {each}", tqc, _sb3s(tqc), Target(1.0)),
        _row("ddpg", f"DDPG HalfCheetah-v4, {each}", ddpg, _sb3s(ddpg), Target(1.0)),
        _row("dqn", nets.format("DQN"), dqn, _sb3s(dqn), Target(3.0, 4.0)),
        _row("qr-dqn", nets.format("QR-DQN"), qr_dqn, _either(qr_dqn.sb3()), Target(1.0)),
        _transformer(),
        *_learnt(),
        *(_start(policy, env, cold) for policy, env in starts for cold in (False, True)),
    ]
