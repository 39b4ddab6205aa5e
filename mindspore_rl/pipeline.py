"""From what a user asks for to a plan: build, infer, partition, reduce, lower."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspore_rl import gpu, loading, programs, toolchain
from mindspore_rl.config import to_dict
from mindspore_rl.environments.environment import graph_name, graph_names, spec
from mindspore_rl.errors import ConfigError, PolicyError
from mindspore_rl.graph.chunks import chunk_loops
from mindspore_rl.graph.distribution_policy import DistributionPolicy
from mindspore_rl.graph.partials import reduce_partials
from mindspore_rl.graph.partition import Partition, partition
from mindspore_rl.graph.schedule import apply_schedule
from mindspore_rl.lowering.lower import make_plan
from mindspore_rl.plan.deployment import Deployment
from mindspore_rl.plan.plan import Plan

REQUIRED_KEYS = ("env", "seed", "num_envs", "num_steps", "total_steps")
Dump = Callable[[str, str], None]


@dataclass(frozen=True)
class JobRequest:
    """What a user asks for.

    Attributes:
        algorithm: the file of an algorithm.
        config: an instance of its `Config`.
        workers: replicas of each fragment that the policy gives `WORKERS`.
        cells: `native`, `mindspore` or `auto`: native on the CPU where there is a compiler.
        compiled: False runs cells as plain Python, for debuggers.
        policy_file: where the policy came from, to be kept with the run.
        num_iterations: instead of what `total_steps` gives.
        deployment: the hosts to run on; `deployment_file`: its file, kept with the run.
    """

    algorithm: Path
    policy: DistributionPolicy
    config: Any
    workers: int = 1
    device: str = "CPU"
    cells: str = "auto"
    compiled: bool = True
    timeout_s: float = 60.0
    num_iterations: int | None = None
    record: tuple[str, ...] = ()
    resume: str = ""
    load_at: tuple[tuple[int, str], ...] = ()
    deployment: Deployment = Deployment()
    deployment_file: str = ""
    policy_file: str = ""


def environment_for(policy: DistributionPolicy, name: str) -> str:
    """The form of an environment that a policy can run.

    Raises:
        PolicyError: the policy compiles environments and this one has no graph form.
    """
    compiles = any("environment" in rule.compiled for rule in policy.fragments)
    if not compiles or spec(name).in_graph:
        return name
    found = graph_name(name)
    if found is not None:
        return found
    raise PolicyError(
        f"policy {policy.name} compiles the environment into the loop, and {name} has no graph "
        f"form; use one of {', '.join(graph_names())}, or another policy"
    )


def analyse(request: JobRequest, dump: Dump | None = None) -> Partition:
    """Builds the graph and cuts it.

    Raises:
        MsrlError: any mistake in the program, the policy or the configuration.
    """
    from mindspore_rl.graph.infer import infer  # noqa: PLC0415  (imports MindSpore)
    from mindspore_rl.graph.render import render_partition, render_program  # noqa: PLC0415

    dump = dump or (lambda name, text: None)
    cls = programs.trainer_class(request.algorithm)
    for key in REQUIRED_KEYS:
        if not hasattr(request.config, key):
            raise ConfigError(
                f"{request.algorithm}: Config has no field {key!r}; expected "
                f"{', '.join(REQUIRED_KEYS)}"
            )
    environment = spec(request.config.env)
    program = infer(
        cls, request.config, environment, request.algorithm.stem, request.compiled, cached=True
    )
    dump("1-program.txt", render_program(program))
    cut = partition(program, request.policy, request.workers, request.config.num_envs)
    dump("2-partition.txt", render_partition(cut))
    cut = chunk_loops(apply_schedule(reduce_partials(cut)), environment.in_graph)
    dump("3-reduced.txt", render_partition(cut))
    return cut


def prepare(request: JobRequest, run_dir: Path, dump: Dump | None = None) -> tuple[Plan, Partition]:
    """Lowers a job into a run directory.

    A GPU holds one rank of a group. Replicas that would share one are fused on this machine: there
    are fewer of them, with more environments each. Other ranks may share a GPU.
    """
    if _cells(request) == "native":
        toolchain.begin_threads()
    plan, cut = _lower(request, run_dir, dump)
    if request.device == "GPU" and not request.deployment.spans_hosts:
        gpus = len(gpu.driver().gpus)
        if len(plan.group_ranks) > gpus and request.workers > gpus:
            return _lower(dataclasses.replace(request, workers=gpus), run_dir, dump)
    return plan, cut


def _lower(request: JobRequest, run_dir: Path, dump: Dump | None) -> tuple[Plan, Partition]:
    cut = analyse(request, dump)
    config = request.config
    num_ranks = sum(fragment.replicas for fragment in cut.fragments)
    alone = num_ranks == 1 or not request.compiled
    per_iteration = cut.program.steps_per_env * config.num_envs
    iterations = request.num_iterations or max(1, -(-config.total_steps // per_iteration))
    algorithm = {
        "name": request.algorithm.stem,
        "file": str(loading.keep(request.algorithm, run_dir)),
        "package": loading.package_of(request.algorithm),
    }
    environment = spec(config.env)
    trainer = programs.load_trainer(algorithm, to_dict(config), environment)
    if request.device == "GPU":
        gpu.refuse_operators(programs.modules_of(trainer))
    plan = make_plan(
        cut,
        run_dir,
        record=request.record,
        parameter_entries=_parameter_entries(trainer),
        algorithm=algorithm,
        config=to_dict(config),
        workers=request.workers,
        environment=config.env,
        in_graph=environment.in_graph,
        num_envs=config.num_envs,
        num_steps=config.num_steps,
        num_iterations=iterations,
        seed=config.seed,
        compiled=request.compiled,
        device=request.device,
        cells=_cells(request),
        timeout_s=request.timeout_s,
        resume=request.resume,
        load_at={str(k): v for k, v in request.load_at},
        hosts=() if alone else request.deployment.place(num_ranks, request.device),
    )
    if dump:
        for fragment in plan.fragments:
            dump(f"4-{fragment.file}", (run_dir / "fragments" / fragment.file).read_text())
    return plan, cut


def _cells(request: JobRequest) -> str:
    """Who runs the cells."""
    if request.cells == "native":
        if request.device == "GPU":
            raise ConfigError("--cells native is for the CPU; on a GPU cells are MindSpore's")
        if toolchain.compiler() is None:
            raise ConfigError(
                "--cells native needs a C++ compiler and there is none: apt-get install g++, name "
                "one by CXX, or leave --cells out"
            )
    if request.cells != "auto":
        return request.cells
    possible = request.device == "CPU" and request.compiled and toolchain.compiler() is not None
    return "native" if possible else "mindspore"


def _parameter_entries(trainer: Any) -> dict[str, int]:
    """How many numbers a message of parameters holds, by scope."""
    from mindspore_rl.runtime.parameters import named_parameters  # noqa: PLC0415

    return {
        scope: sum(parameter.size for _, parameter in named_parameters(trainer, scope))
        for scope in ("actor", "all")
    }
