"""Random cells: expressions over MindSpore's operators in nested loops and branches.

Comparisons and rounding depend on a number's last digit, so they read only inputs, which have the
same bits on both sides. Functions are used only where they amplify rounding little.
"""

from hypothesis import strategies as st

SIZES = (1, 2, 3, 5, 8, 17, 64)
UNARY = (
    "ops.tanh({0})", "ops.exp(ops.tanh({0}))", "ops.log(ops.abs({0}) + 1.0)",
    "ops.sqrt(ops.abs({0}) + 0.1)", "ops.sin({0})", "ops.cos({0})", "ops.sigmoid({0})",
    "ops.relu({0})", "-{0}", "{0} * 0.5 - 1.0", "ops.square(ops.tanh({0}))",
    "ops.clamp({0}, -1.0, 1.0)", "ops.softplus(ops.tanh({0}))", "ops.silu({0})", "ops.erf({0})",
    "1.0 / (1.5 + ops.tanh({0}))", "ops.rsqrt(ops.abs({0}) + 0.5)",
)  # fmt: skip
BINARY = (
    "{0} + {1}", "{0} - {1}", "{0} * ops.tanh({1})", "{0} / (1.5 + ops.tanh({1}))",
    "ops.maximum({0}, {1})", "ops.minimum({0}, {1})", "ops.select(truth_{n}, {0}, {1})",
)  # fmt: skip


class _Cell:
    """Lines of a cell, with the shapes of its variables."""

    def __init__(self, draw):
        self.draw = draw
        self.rows, self.columns = (draw(st.sampled_from(SIZES)) for _ in range(2))
        self.lines, self.count = [], 0
        self.nested = 0  # MindSpore takes minutes to compile a few loops within each other
        self.inputs = {"x": (self.rows, self.columns), "y": (self.rows, self.columns)}
        self.inputs |= {"bias": (self.columns,), "weight": (self.columns, self.columns)}
        self.known = dict(self.inputs)

    def pick(self, shape):
        names = [name for name, found in self.known.items() if found == shape]
        return self.draw(st.sampled_from(names))

    def add(self, expression, shape, depth):
        self.count += 1
        name = f"v{self.count}"
        self.lines.append("    " * depth + f"{name} = {expression}")
        self.known[name] = shape
        return name

    def statement(self, depth):
        whole = (self.rows, self.columns)
        kinds = ("unary", "binary", "broadcast", "product", "reduce", "shape", "rows", "loss")
        kind = self.draw(st.sampled_from(kinds))
        x = self.pick(whole)
        if kind == "unary":
            return self.add(self.draw(st.sampled_from(UNARY)).format(x), whole, depth)
        if kind == "binary":
            text = self.draw(st.sampled_from(BINARY))
            return self.add(text.format(x, self.pick(whole), n=0), whole, depth)
        if kind == "broadcast":
            return self.add(f"{x} * ops.tanh({self.pick((self.columns,))})", whole, depth)
        if kind == "product":
            return self.add(f"ops.matmul(ops.tanh({x}), weight) * 0.3", whole, depth)
        if kind == "reduce":
            axis = self.draw(st.sampled_from((0, 1)))
            text = self.draw(st.sampled_from(("sum", "mean", "max", "min")))
            reduced = {
                "sum": f"ops.tanh({x}).sum({axis}, keepdims=True)",
                "mean": f"{x}.mean({axis}, keep_dims=True)",
                "max": f"ops.amax({x}, {axis}, keepdims=True)",
                "min": f"ops.amin({x}, {axis}, keepdims=True)",
            }[text]
            return self.add(f"{x} - 0.5 * {reduced}", whole, depth)
        if kind == "shape":
            text = self.draw(
                st.sampled_from(
                    (
                        "{0}.reshape((-1,)).reshape({1})",
                        "ops.transpose(ops.transpose({0}, (1, 0)) * 0.5, (1, 0))",
                        "ops.concat(({0}[:1], {0}[1:]), 0)",
                        "ops.concat(({0}[:, 1:], {0}[:, :1]), 1)",
                        "ops.stack(({0}, {0} * 0.5), 1)[:, 1]",
                        "ops.flip({0}, (0,))",
                        "ops.cumsum(ops.tanh({0}), 0) * 0.2",
                        "ops.broadcast_to({0}[:1], {1}) + {0}",
                    )
                )
            )
            return self.add(text.format(x, whole), whole, depth)
        if kind == "rows":
            return self.add(f"ops.gather({x}, index, 0)", whole, depth)
        text = self.draw(st.sampled_from(("log_softmax", "softmax")))
        return self.add(f"ops.{text}({x}, -1)", whole, depth)

    def block(self, depth, loops):
        for _ in range(self.draw(st.integers(1, 3))):
            kind = self.draw(st.sampled_from(("plain", "plain", "loop", "branch", "state")))
            before = dict(self.known)
            whole = (self.rows, self.columns)
            if kind in ("loop", "branch"):
                self.nested += 1
            if self.nested > 2 and kind in ("loop", "branch"):
                kind = "plain"
            if kind == "loop" and loops:
                index, carried = f"i{self.count}", self.add(self.pick(whole), whole, depth)
                self.lines.append("    " * depth + f"{index} = ms.Tensor(0, ms.int32)")
                turns = self.draw(st.integers(1, 3))
                self.lines.append("    " * depth + f"while {index} < {turns}:")
                before = dict(self.known)
                self.block(depth + 1, loops - 1)
                last = self.pick(whole)
                self.lines.append("    " * (depth + 1) + f"{carried} = ops.tanh({last}) + 0.1")
                self.lines.append("    " * (depth + 1) + f"{index} = {index} + 1")
                self.known = before
            elif kind == "branch" and loops:
                carried = self.add(self.pick(whole), whole, depth)
                self.lines.append("    " * depth + "if x[0, 0] > y[0, 0]:")
                before = dict(self.known)
                self.block(depth + 1, loops - 1)
                self.lines.append("    " * (depth + 1) + f"{carried} = {self.pick(whole)} * 0.5")
                self.known = before
            elif kind == "state":
                value = self.pick(whole)
                self.lines.append("    " * depth + f"ops.assign(self.state, {value})")
                self.add("self.state + 0.0", whole, depth)
            else:
                self.statement(depth)


@st.composite
def cells(draw):
    """Draws the source of a random cell, its rows and columns, and a seed for its inputs."""
    cell = _Cell(draw)
    cell.block(2, 2)
    result = cell.pick((cell.rows, cell.columns))
    arguments = ", ".join(cell.inputs)
    differentiate = draw(st.booleans()) and not any(
        "while" in li or "self." in li or "if " in li for li in cell.lines
    )
    body = "\n".join(cell.lines)
    head = f"""import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
import numpy as np

class Random(nn.Cell):
    def __init__(self):
        super().__init__(auto_prefix=False)
        self.state = Parameter(ms.ops.ones({(cell.rows, cell.columns)}, ms.float32), name="state")
"""
    truth = "        truth_0 = x > y\n"
    if differentiate:
        text = f"""{head}
        self.derivative = ms.grad(self.loss, (0, 2, 3))

    def loss(self, {arguments}, index):
{truth}{body}
        return ({result} * y).sum()

    def construct(self, {arguments}, index):
        return self.derivative({arguments}, index)
"""
    else:
        text = f"""{head}
    def construct(self, {arguments}, index):
{truth}{body}
        return {result}
"""
    return text, cell.rows, cell.columns, draw(st.integers(0, 2**16))
