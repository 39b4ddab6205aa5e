"""The ONNX file of a policy: names, a free batch size, metadata; MindSpore writes none of them."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl import __version__
from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.spaces import Box
from mindspore_rl.errors import MissingPackageError, MsrlError, install
from mindspore_rl.plan.plan import Plan

FREE = 1009
"""Batch size of a graph whose batch is to become free: a prime, to be found in shapes again."""
BATCH = "batch"


def finish(path: Path, plan: Plan, spec: EnvironmentSpec, free: int) -> None:
    """Names the inputs and outputs of a file that MindSpore has written, and describes them.

    Args:
        path: of the file. Its inputs are `obs` and recurrent states, its outputs the action and
            the next states.
        plan: of the run.
        spec: of the environment.
        free: the batch size with which it was written, to be made free; 0: it stays.

    Raises:
        MissingPackageError: onnx is not installed.
    """
    try:
        import onnx  # noqa: PLC0415  (optional)
    except ImportError as error:
        raise _missing("onnx") from error
    model = onnx.load(path)
    graph = model.graph
    graph.name = "policy"
    names = ["obs", *(f"state_{i}" for i in range(len(graph.input) - 1))]
    for name, given in zip(names, graph.input, strict=True):
        if given.name != name:
            graph.node.insert(0, onnx.helper.make_node("Identity", [name], [given.name]))
            given.name = name
    names = ["action", *(f"next_{name}" for name in names[1:])]
    for name, found in zip(names, graph.output, strict=True):
        graph.node.append(onnx.helper.make_node("Identity", [found.name], [name]))
        found.name = name
    if free:
        for value in (*graph.input, *graph.output):
            value.type.tensor_type.shape.dim[0].dim_param = BATCH
        constants = {one.name: one for one in graph.initializer}
        constants |= {n.output[0]: n.attribute[0].t for n in graph.node if n.op_type == "Constant"}
        for name in {node.input[1] for node in graph.node if node.op_type == "Reshape"}:
            if (constant := constants.get(name)) is not None:
                shape = onnx.numpy_helper.to_array(constant)
                # 0 takes over the extent of the input at the same place.
                freed = np.where(shape % free == 0, 0 if -1 in shape else -1, shape)
                constant.CopyFrom(onnx.numpy_helper.from_array(freed, constant.name))
    onnx.helper.set_model_props(model, _metadata(plan, spec, len(graph.input) > 1))
    onnx.checker.check_model(model)
    onnx.save(model, path)


def read(path: Path) -> Callable[..., list[np.ndarray]]:
    """Returns a file's function of arrays. Raises: MissingPackageError, MsrlError."""
    try:
        import onnxruntime  # noqa: PLC0415  (optional)
    except ImportError as error:
        raise _missing("onnxruntime") from error
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # errors of onnxruntime, of any type
        text = str(error).strip().splitlines()[0]
        raise MsrlError(f"onnxruntime cannot read what MindSpore has written ({text})") from error
    names = [one.name for one in session.get_inputs()]

    def call(*given: np.ndarray) -> list[np.ndarray]:
        try:
            return session.run(None, dict(zip(names, given, strict=True)))
        except Exception as error:  # likewise
            text = str(error).strip().splitlines()[0]
            raise MsrlError(
                f"onnxruntime cannot run the file with a batch of {len(given[0])} ({text}); if the "
                "policy depends on the batch size, choose one: --batch 1"
            ) from error

    return call


def _missing(package: str) -> MissingPackageError:
    text = f"the format onnx needs the package {package}; {install('export')}"
    return MissingPackageError(text, "export")


def _metadata(plan: Plan, spec: EnvironmentSpec, remembers: bool) -> dict[str, str]:
    """Returns what a program needs to know that uses the file; objects as JSON."""
    kind = "image" if spec.images else "box"
    columns: list[dict[str, Any]] = [{"path": "obs", "kind": kind, "shape": spec.obs_shape}]
    if spec.layout is not None:
        columns = list(spec.layout.columns())
    if size := spec.mask_size:
        end = spec.obs_shape[-1]
        columns.append({"path": "action_mask", "kind": "action_mask", "columns": [end - size, end]})
    action: dict[str, Any] = {"kind": "discrete", "n": getattr(spec.action_space, "n", 0)}
    if isinstance(space := spec.action_space, Box):
        action = {"kind": "box", "shape": space.shape, "dtype": space.dtype}
        for name, bounds in (("low", space.low), ("high", space.high)):
            action[name] = [bound if math.isfinite(bound) else None for bound in bounds]
    state = "next_state_i of a step is state_i of the next; zeros at the start of an episode"
    agents = [[team.name, team.num_agents] for team in spec.teams]
    return {
        "mindspore_rl": __version__,
        "algorithm": str(plan.algorithm.get("name", "")),
        "environment": plan.environment,
        "obs": json.dumps(columns),
        "action": json.dumps(action),
        "normalisation": "in the graph: obs are as the environment gives them",
        **({"agents": json.dumps(agents)} if agents else {}),
        **({"state": state} if remembers else {}),
    }
