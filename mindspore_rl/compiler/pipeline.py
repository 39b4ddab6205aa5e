"""The passes of the compiler in order, from a request to a plan.

Each pass takes the result of the one before. `verify` checks the results of passes, and
`msrl graph --stage` shows them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mindspore_rl import programs
from mindspore_rl.compiler.frontend.build import build, read
from mindspore_rl.compiler.ir.ir import Program, walk
from mindspore_rl.compiler.ir.text import render
from mindspore_rl.compiler.lowering.emit_module import Generated
from mindspore_rl.compiler.lowering.make_plan import generate_all, make_plan
from mindspore_rl.compiler.lowering.project import Projection, project
from mindspore_rl.compiler.lowering.regions import find_regions
from mindspore_rl.compiler.lowering.target import Target
from mindspore_rl.compiler.partition.chunks import chunk_loops
from mindspore_rl.compiler.partition.partial_sums import reduce_partials
from mindspore_rl.compiler.partition.partition import Partition, partition
from mindspore_rl.compiler.partition.replicate import replicate
from mindspore_rl.compiler.partition.schedule import apply_schedule, check_turns
from mindspore_rl.compiler.show.render import render_fragments, render_partition
from mindspore_rl.compiler.verify import verify, verify_partition, verify_program
from mindspore_rl.config import REQUIRED, to_dict
from mindspore_rl.environments.registry import graph_name, graph_names, spec
from mindspore_rl.errors import ConfigError, PolicyError
from mindspore_rl.plan.deployment import Deployment
from mindspore_rl.plan.plan import Plan
from mindspore_rl.platform import gpu, toolchain, user_modules
from mindspore_rl.policy import DistributionPolicy

STAGES = (
    *("build", "infer", "replicate", "partition", "reduce", "schedule", "chunk"),
    *("project", "regions", "generate"),
)
"""Names of the passes, in order."""
See = Callable[[str, Any], None]
"""A callback that is given the name and the result of each pass."""


def _nothing(_name: str, _result: Any) -> None:
    pass


@dataclass(frozen=True)
class JobRequest:
    """A job that a user asks for.

    Attributes:
        algorithm: the file of an algorithm.
        config: an instance of its `Config`.
        workers: replicas of each fragment that the policy gives `WORKERS`.
        cells: `native`, `mindspore` or `auto`: native on the CPU where there is a compiler.
        compiled: False runs cells as plain Python, for debuggers.
        policy_file: the file of the policy, saved with the run.
        config_file: the YAML file of the configuration, or empty; its name is saved.
        checkpoint_replay: whether checkpoints contain kept records.
        replay_dir: folder of the files that hold kept records; empty: they are held in memory.
        profile: number of iterations to record, see `runtime.profile_recorder`; 0: none.
        num_iterations: overrides the number that follows from `total_steps`.
        deployment: the hosts to run on; `deployment_file`: its file, saved with the run.
    """

    algorithm: Path
    policy: DistributionPolicy
    config: Any
    workers: int = 1
    device: str = "CPU"
    cells: str = "auto"
    compiled: bool = True
    timeout_s: float = 60.0
    checkpoint_replay: bool = True
    replay_dir: str = ""
    profile: int = 0
    num_iterations: int | None = None
    record: tuple[str, ...] = ()
    resume: str = ""
    deployment: Deployment = Deployment()
    deployment_file: str = ""
    policy_file: str = ""
    config_file: str = ""


def environment_for(policy: DistributionPolicy, name: str) -> str:
    """Returns the name of an environment's form that a policy can run.

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


def analyse(request: JobRequest) -> Partition:
    """Builds the graph and partitions it.

    Raises:
        MsrlError: any mistake in the program, the policy or the configuration.
    """
    return _cut(request, _trainer(request), _nothing)


def schedules(request: JobRequest, env_steps: int) -> dict[str, float]:
    """Returns the algorithm's schedules after `env_steps` environment steps, by name."""
    from mindspore_rl.compiler.analysis import schedules as found  # noqa: PLC0415  (MindSpore)

    trainer = _trainer(request)
    return found.schedules(build(trainer, request.algorithm.stem), trainer, env_steps)


def _trainer(request: JobRequest) -> Any:
    from mindspore_rl.compiler.analysis.trainer import make_trainer  # noqa: PLC0415  (MindSpore)

    for key in REQUIRED:
        if not hasattr(request.config, key):
            raise ConfigError(
                f"{request.algorithm}: Config has no field {key!r}; expected {', '.join(REQUIRED)}"
            )
    cls = programs.trainer_class(request.algorithm)
    return make_trainer(cls, request.config, spec(request.config.env))


def _cut(request: JobRequest, trainer: Any, see: See) -> Partition:
    from mindspore_rl.compiler.analysis.infer import infer  # noqa: PLC0415  (imports MindSpore)

    def done(name: str, result: Any) -> Any:
        if isinstance(result, Program):
            verify_program(result)
        elif isinstance(result, Partition):
            verify_partition(result)
        see(name, result)
        return result

    config, policy = request.config, request.policy
    loop = read(trainer)
    program = done("build", build(trainer, request.algorithm.stem, loop))
    program = done("infer", infer(program, trainer, request.compiled, cached=True, job=loop))
    placed = done("replicate", replicate(policy, request.workers, config.num_envs, program.teams))
    cut = done("partition", partition(program, policy, placed))
    cut = done("reduce", reduce_partials(cut))
    cut = done("schedule", apply_schedule(cut))
    return done("chunk", chunk_loops(cut, trainer.spec.in_graph))


def lower(
    cut: Partition, record: tuple[str, ...], target: Target, see: See = _nothing
) -> tuple[dict[str, Projection], dict[str, Generated]]:
    """Generates the modules of a partitioned program's fragments.

    Raises:
        MsrlError: a fragment's projected program breaks a rule.
    """
    loops = {f.name: project(cut, f.name, target.in_graph, record) for f in cut.fragments}
    verify(cut, {name: loop.body for name, loop in loops.items()})
    if cut.arrivals is not None:
        check_turns(cut, loops[cut.arrivals.consumer].body)
    see("project", {name: _seen(loop, loop.body) for name, loop in loops.items()})
    regions = {name: find_regions(loop, target.in_graph) for name, loop in loops.items()}
    see("regions", {name: _seen(loop, regions[name]) for name, loop in loops.items()})
    code = generate_all(cut, loops, regions, target)
    see("generate", code)
    return loops, code


def _seen(loop: Projection, body: tuple[Any, ...]) -> Program:
    """Returns a fragment's program, with the values of the variables in it."""
    names = {name for op, _ in walk(loop.body) for name in (*op.reads, *op.targets)}
    values = {name: value for name, value in loop.values.items() if name in names}
    return Program(loop.fragment.name, body, values=values)


def stage_text(result: Any) -> str:
    """Returns the result of a pass as text."""
    if isinstance(result, Program):
        return render(result)
    if isinstance(result, Partition):
        return render_partition(result) + "\n" + render(result.program)
    if isinstance(result, tuple):
        return render_fragments(result)
    return "\n".join(
        f"# ---- {name}\n{found.source}" if isinstance(found, Generated) else render(found)
        for name, found in result.items()
    )


def prepare(
    request: JobRequest, run_dir: Path, see: See = _nothing, cut: Partition | None = None
) -> tuple[Plan, Partition]:
    """Lowers a job into a run directory.

    A GPU holds at most one rank of a group. On a single host with fewer GPUs than replicas, the
    job is planned again with one replica per GPU and more environments each. Other ranks may share
    a GPU.

    Args:
        request: the job.
        run_dir: the folder that its fragments and files go to.
        see: called with the result of each pass.
        cut: of a request that differs only in what it records, in place of the passes before
            `project`.

    Returns: the plan, and the partitioned program.

    Raises:
        MsrlError: any mistake in the program, the policy or the configuration.
    """
    request = replace(request, cells=_cells(request))
    if request.cells == "native":
        toolchain.begin(toolchain.threads)
    plan, cut = _plan(request, run_dir, see, cut)
    if request.device == "GPU" and not request.deployment.spans_hosts:
        gpus = len(gpu.driver().gpus)
        if len(plan.group_ranks) > gpus and request.workers > gpus:
            return _plan(replace(request, workers=gpus), run_dir, see)
    return plan, cut


def _plan(
    request: JobRequest, run_dir: Path, see: See, cut: Partition | None = None
) -> tuple[Plan, Partition]:
    config, trainer = request.config, _trainer(request)
    if request.device == "GPU":
        gpu.refuse_operators(programs.modules_of(trainer))
    cut = cut or _cut(request, trainer, see)
    num_ranks = sum(fragment.replicas for fragment in cut.fragments)
    alone = num_ranks == 1 or not request.compiled
    per_iteration = cut.program.steps_per_env * config.num_envs
    if own := user_modules.split_environment(config.env):
        user_modules.keep(own[0], run_dir / user_modules.ENVIRONMENT_FOLDER)
    algorithm = {
        "name": request.algorithm.stem,
        "file": str(user_modules.keep(request.algorithm, run_dir / user_modules.FOLDER)),
        "package": user_modules.package_of(request.algorithm),
    }
    in_graph = trainer.spec.in_graph
    native = request.cells == "native"
    target = Target(config.num_envs, config.num_steps, per_iteration, in_graph, native)
    loops, code = lower(cut, request.record, target, see)
    plan = make_plan(
        cut,
        loops,
        code,
        run_dir,
        record=request.record,
        parameter_bytes=_parameter_bytes(trainer),
        parameters=_parameters(trainer),
        algorithm=algorithm,
        config=to_dict(config),
        workers=request.workers,
        environment=config.env,
        library=trainer.spec.library,
        action_mask=trainer.spec.action_mask,
        layout=trainer.spec.layout,
        in_graph=in_graph,
        num_envs=config.num_envs,
        num_steps=config.num_steps,
        num_iterations=num_iterations(request, cut.program),
        seed=config.seed,
        compiled=request.compiled,
        device=request.device,
        cells=request.cells,
        timeout_s=request.timeout_s,
        checkpoint_replay=request.checkpoint_replay,
        replay_dir=request.replay_dir,
        profile=request.profile,
        resume=request.resume,
        hosts=() if alone else request.deployment.place(num_ranks, request.device),
    )
    return plan, cut


def num_iterations(request: JobRequest, program: Program) -> int:
    """Returns the number of iterations of a job.

    Raises:
        PolicyError: there are fewer than those by which the actors' parameters are older.
    """
    per_iteration = program.steps_per_env * request.config.num_envs
    found = request.num_iterations or max(1, -(-request.config.total_steps // per_iteration))
    if (lag := request.policy.schedule.lag) > found:
        raise PolicyError(
            f"schedule: lag is {lag}, and the job has {found} iterations, which would all act with "
            f"the initial parameters; ask for lag={found} at most, or for more iterations "
            "(total_steps)"
        )
    return found


def _cells(request: JobRequest) -> str:
    """Resolves `cells` to `native` or `mindspore` and checks that the choice is possible."""
    if request.cells == "native":
        if request.device == "GPU":
            gpu.refuse_native_cells()
        if toolchain.compiler() is None:
            raise ConfigError(
                "--cells native needs a C++ compiler and there is none: apt-get install g++, name "
                "one by CXX, or leave --cells out"
            )
    if request.cells != "auto":
        return request.cells
    possible = request.device == "CPU" and request.compiled and toolchain.compiler() is not None
    return "native" if possible else "mindspore"


def _parameters(trainer: Any) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all parameters, by name."""
    from mindspore_rl.rl.parameters import named_parameters  # noqa: PLC0415

    return {name: tuple(found.shape) for name, found in named_parameters(trainer, "state")}


def _parameter_bytes(trainer: Any) -> dict[str, int]:
    """Returns the size in bytes of a message of parameters, by scope."""
    from mindspore_rl.rl.parameters import named_parameters  # noqa: PLC0415

    return {
        scope: sum(parameter.nbytes for _, parameter in named_parameters(trainer, scope))
        for scope in ("actor", "all")
    }
