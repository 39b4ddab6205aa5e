"""Table of MindSpore's primitives: what each does to rows, and its native code.

Row analysis and code generation both read this table. It names rules and functions; those are in
`compiler.analysis.row_rules` and `codegen.ops`.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Primitive:
    """A primitive of MindSpore.

    Without `cpp`, `view`, `kernel` and `composed` it has no native code: MindSpore runs its cell.

    Attributes:
        rows: the rule of `row_rules` for the rows of its result; `constant`: no entry of the result
            depends on an entry of an argument; `unknown`: there is no rule; `native`: a node that
            only code generation makes.
        axis: position of the argument that gives its axis or axes; None: it has none.
        default: its axis if that argument is left out; None: it must be given, or means all axes.
        cpp: the C++ expression of an element of the result.
        view: the function of `codegen.ops.views` that gives the result's offset and strides;
            `reshape`: the first argument in another shape; `parts`: several parts of it.
        kernel: the function of `codegen.ops` that emits its C++.
        composed: the function of `codegen.ops.decompositions` that rewrites it as others.
        writes: positions of the arguments that it overwrites; its results, if any, are these.
        update: the C++ statements that overwrite an element of these, see `codegen.ops.updates`.
    """

    rows: str
    axis: int | None = None
    default: int | None = None
    cpp: str | None = None
    view: str = ""
    kernel: str = ""
    composed: str = ""
    writes: tuple[int, ...] = ()
    update: str = ""

    @property
    def native(self) -> bool:
        """True if code generation supports it."""
        return self.cpp is not None or bool(
            self.view or self.kernel or self.composed or self.update
        )


class _Table(dict[str, Primitive]):
    """Primitives by name; one that is missing is unknown."""

    def __missing__(self, name: str) -> Primitive:
        return Primitive("unknown")


def _each(names: str, rows: str, **fields: Any) -> list[tuple[str, Primitive]]:
    return [(name, Primitive(rows, **fields)) for name in names.split()]


def _table(*groups: list[tuple[str, Primitive]]) -> _Table:
    pairs = [pair for group in groups for pair in group]
    found = _Table(pairs)
    if len(found) < len(pairs):
        raise AssertionError("a primitive is in the table twice")
    return found


_ELEMENTWISE = {
    # arithmetic
    "Add": "{0} + {1}",
    "AddExt": "{0} + {2} * {1}",
    "AddScalar": "{0} + {1}",
    "Sub": "{0} - {1}",
    "SubExt": "{0} - {2} * {1}",
    "SubScalar": "{0} - {1}",
    "Mul": "{0} * {1}",
    "Muls": "{0} * {1}",
    "Div": "{0} / {1}",
    "Divs": "{0} / {1}",
    "RealDiv": "{0} / {1}",
    "FloorDiv": "floor_div({0}, {1})",
    "FloorMod": "floor_mod({0}, {1})",
    "Neg": "-{0}",
    "Abs": "std::abs({0})",
    "Square": "{0} * {0}",
    "Sqrt": "sqrtf({0})",
    "Rsqrt": "1.0f / sqrtf({0})",
    "Reciprocal": "1.0f / {0}",
    "Inv": "1.0f / {0}",
    "AddN": "",  # the sum of its arguments, see `expression`
    "Pow": "powf({0}, {1})",
    "PowTensorScalar": "powf({0}, {1})",
    "Addcmul": "{0} + {3} * {1} * {2}",
    "Addcdiv": "{0} + {3} * {1} / {2}",
    "Lerp": "{0} + {2} * ({1} - {0})",
    "LerpScalar": "{0} + {2} * ({1} - {0})",
    "Hypot": "hypotf({0}, {1})",
    "Mod": "fmodf({0}, {1})",
    "DivMod": "rounded({0} / {1}, {2})",
    "RemainderTensorTensor": "floor_mod({0}, {1})",
    "RemainderTensorScalar": "floor_mod({0}, {1})",
    "RemainderScalarTensor": "floor_mod({0}, {1})",
    "Xlogy": "({0} == 0.0f && {1} == {1} ? 0.0f : {0} * logf({1}))",
    "Maximum": "larger({0}, {1})",
    "Minimum": "smaller({0}, {1})",
    "Fmax": "fmaxf({0}, {1})",
    "Fmin": "fminf({0}, {1})",
    "ClampScalar": "smaller(larger({0}, {1}), {2})",
    "ClampTensor": "smaller(larger({0}, {1}), {2})",
    "Floor": "floorf({0})",
    "Ceil": "ceilf({0})",
    "Round": "rintf({0})",
    "Trunc": "truncf({0})",
    "Sign": "sign({0})",
    "Heaviside": "({0} == 0.0f ? {1} : {0} > 0.0f ? 1.0f : {0} < 0.0f ? 0.0f : {0})",
    "NanToNum": "({0} != {0} ? {1} : {0} == INFINITY ? {2} : {0} == -INFINITY ? {3} : {0})",
    # functions
    "Exp": "expf({0})",
    "Expm1": "expm1f({0})",
    "Log": "logf({0})",
    "Log1p": "log1pf({0})",
    "Log2": "log2f({0})",
    "Sin": "sinf({0})",
    "Cos": "cosf({0})",
    "Tan": "tanf({0})",
    "Asin": "asinf({0})",
    "ACos": "acosf({0})",
    "Atan": "atanf({0})",
    "Atan2": "atan2f({0}, {1})",
    "Sinh": "sinhf({0})",
    "Cosh": "coshf({0})",
    "Tanh": "tanh_fraction({0})",
    "Asinh": "asinhf({0})",
    "Acosh": "acoshf({0})",
    "Atanh": "atanhf({0})",
    "Sinc": "({0} == 0.0f ? 1.0f : sinf(3.14159265f * {0}) / (3.14159265f * {0}))",
    "Erfinv": "erfinv({0})",
    "Lgamma": "lgammaf({0})",
    "Digamma": "digamma({0})",
    "Logit": "log_odds({0}, {1})",
    "Erf": "erff({0})",
    "Erfc": "erfcf({0})",
    "ReLU": "relu({0})",
    "ReLU6": "smaller(relu({0}), 6.0f)",
    "Sigmoid": "sigmoid({0})",
    "SiLU": "{0} * sigmoid({0})",
    "Softplus": "softplus({0})",
    "SoftplusExt": "({0} * {1} > {2} ? {0} : log1pf(expf(smaller({0} * {1}, {2}))) / {1})",
    "GeLU": "0.5f * {0} * (1.0f + tanhf(0.7978845608f * ({0} + 0.044715f * {0} * {0} * {0})))",
    "FastGeLU": "{0} / (1.0f + expf(-1.702f * std::abs({0}))) * "
    "expf(0.851f * ({0} - std::abs({0})))",
    "Elu": "({0} > 0.0f ? {0} : {1} * expm1f({0}))",
    "CeLU": "({0} > 0.0f ? {0} : {1} * expm1f({0} / {1}))",
    "SeLU": "1.05070098f * ({0} > 0.0f ? {0} : 1.67326324f * expm1f({0}))",
    "PReLU": "({0} > 0.0f ? {0} : {1} * {0})",
    "Mish": "{0} * tanhf(softplus({0}))",
    "Softsign": "{0} / (1.0f + std::abs({0}))",
    "HSwish": "({0} <= -3.0f ? 0.0f : {0} >= 3.0f ? {0} : {0} * ({0} + 3.0f) / 6.0f)",
    "HSigmoid": "smaller(larger({0} / 6.0f + 0.5f, 0.0f), 1.0f)",
    "HShrink": "(std::abs({0}) <= {1} ? 0.0f : {0})",
    "SoftShrink": "({0} > {1} ? {0} - {1} : {0} < -{1} ? {0} + {1} : {0} * 0.0f)",
    # gradients, named as MindSpore orders their arguments
    "TanhGrad": "{1} * (1.0f - {0} * {0})",
    "ReluGrad": "({1} > 0.0f ? {0} : 0.0f)",
    "SigmoidGrad": "{1} * {0} * (1.0f - {0})",
    "SqrtGrad": "{1} * 0.5f / {0}",
    "RsqrtGrad": "{1} * -0.5f * {0} * {0} * {0}",
    "ReciprocalGrad": "-{1} * {0} * {0}",
    "InvGrad": "-{1} * {0} * {0}",
    "SoftplusGrad": "{0} * sigmoid({1})",
    "SiLUGrad": "{0} * sigmoid({1}) * (1.0f + {1} * (1.0f - sigmoid({1})))",
    "AbsGrad": "{1} * sign({0})",
    "LogGrad": "{1} / {0}",
    "AsinGrad": "{1} / sqrtf(1.0f - {0} * {0})",
    "ACosGrad": "-{1} / sqrtf(1.0f - {0} * {0})",
    "AtanGrad": "{1} / (1.0f + {0} * {0})",
    "AsinhGrad": "{1} / coshf({0})",
    "AcoshGrad": "{1} / sinhf({0})",
    "LogitGrad": "({2} >= 0.0f && ({1} < {2} || {1} > 1.0f - {2}) ? 0.0f : "
    "{0} / ({1} * (1.0f - {1})))",
    "SoftplusGradExt": "({1} * {2} > {3} ? {0} : {0} * sigmoid({1} * {2}))",
    "GeLUGrad": "{0} * gelu_slope({1})",
    "FastGeLUGrad": "{0} * sigmoid(1.702f * {1}) * "
    "(1.0f + 1.702f * {1} * (1.0f - sigmoid(1.702f * {1})))",
    "ReLU6Grad": "({1} > 0.0f && {1} < 6.0f ? {0} : 0.0f)",
    "EluGrad": "({1} > 0.0f ? {0} : {0} * ({1} + 1.0f))",
    "HSwishGrad": "({1} <= -3.0f ? 0.0f : {1} >= 3.0f ? {0} : {0} * ({1} / 3.0f + 0.5f))",
    "HSigmoidGrad": "({1} > -3.0f && {1} < 3.0f ? {0} / 6.0f : 0.0f)",
    "HShrinkGrad": "(std::abs({1}) <= {2} ? 0.0f : {0})",
    "SoftShrinkGrad": "(std::abs({1}) <= {2} ? 0.0f : {0})",
    # comparisons and truth values
    "Greater": "{0} > {1}",
    "GreaterEqual": "{0} >= {1}",
    "Less": "{0} < {1}",
    "LessEqual": "{0} <= {1}",
    "Equal": "{0} == {1}",
    "NotEqual": "{0} != {1}",
    "GreaterScalar": "{0} > {1}",
    "GreaterEqualScalar": "{0} >= {1}",
    "LessScalar": "{0} < {1}",
    "LessEqualScalar": "{0} <= {1}",
    "EqScalar": "{0} == {1}",
    "NeScalar": "{0} != {1}",
    "LogicalAnd": "{0} && {1}",
    "LogicalOr": "{0} || {1}",
    "LogicalNot": "!{0}",
    "LogicalXor": "{0} != {1}",
    "IsNan": "{0} != {0}",
    "IsInf": "std::abs({0}) == INFINITY",
    "IsFinite": "std::abs({0}) < INFINITY",
    "Select": "({0} ? {1} : {2})",
    "MaskedFill": "({1} ? {2} : {0})",
    "MaskedFillScalar": "({1} ? {2} : {0})",
    "InplaceMaskedFillTensor": "({1} ? {2} : {0})",
    "InplaceMaskedFillScalar": "({1} ? {2} : {0})",
    "IsClose": "({0} == {1} || {4} && {0} != {0} && {1} != {1} || std::abs({1}) < INFINITY && "
    "std::abs({0} - {1}) <= {3} + {2} * std::abs({1}))",
    # bits
    "BitwiseAnd": "{0} & {1}",
    "BitwiseAndTensor": "{0} & {1}",
    "BitwiseAndScalar": "{0} & {1}",
    "BitwiseOr": "{0} | {1}",
    "BitwiseOrTensor": "{0} | {1}",
    "BitwiseOrScalar": "{0} | {1}",
    "BitwiseXor": "{0} ^ {1}",
    "BitwiseXorTensor": "{0} ^ {1}",
    "BitwiseXorScalar": "{0} ^ {1}",
    "LeftShift": "{0} << {1}",
    "RightShift": "{0} >> {1}",
    # copies
    "Cast": "{0}",
    "TensorMove": "{0}",
    "FillV2": "{1}",
    "FillScalar": "{1}",
}
"""C++ expressions of element-wise primitives; `{0}` is an element of the first argument."""

PRIMITIVES = _table(
    [(name, Primitive("elementwise", cpp=cpp)) for name, cpp in _ELEMENTWISE.items()],
    _each(
        "Acos AcosExt AcoshExt AddcdivExt AddcmulExt AsinExt AsinhExt Atan2Ext AtanExt BitwiseNot "
        "ClipByValue Clone Copy DivMods DivNoNan EluExt EqualExt Exp2 FloorDivScalar FmodScalar "
        "FmodTensor GeluExt HardShrink Invert LeakyReLU LeakyReLUExt Log10 LogAddExp LogAddExp2 "
        "LogSigmoid LogSigmoidExt Polar Positive PowScalarTensor ReluExt Rint SeLUExt SiLUExt "
        "SquaredDifference StopGradient Threshold TruncateDiv TruncateMod Where Xdivy "
        "XLogYScalarOther XLogYScalarSelf",
        "elementwise",
    ),
    _each("Identity", "elementwise", view="reshape"),
    _each("SmoothL1Loss", "elementwise", composed="smooth_l1"),
    _each("BinaryCrossEntropy", "elementwise", composed="cross_entropy"),
    _each("BCEWithLogitsLoss", "elementwise", composed="logits_loss"),
    _each("KLDivLoss", "elementwise", composed="divergence"),
    _each("BiasAdd", "first", cpp="{0} + {1}"),
    _each("Load", "first", view="reshape"),
    # numbers that no entry of an argument changes
    _each("Zeros ZerosLike ZerosLikeExt NewZeros", "constant", cpp="0"),
    _each("Ones OnesLike NewOnes", "constant", cpp="1"),
    _each("DType OnesLikeExt Rank Shape Size TensorShape", "constant"),
    # reductions
    _each("MeanExt ReduceMean ReduceSum SumExt", "reduces", axis=1, kernel="sum"),
    _each(
        "AMax AMin ProdExt ReduceAll ReduceAny ReduceMax ReduceMin ReduceProd",
        "reduces",
        axis=1,
        kernel="fold",
    ),
    _each(
        "ArgMaxExt ArgMaxWithValue ArgMinExt ArgMinWithValue Argmax Argmin",
        "reduces",
        axis=1,
        kernel="arg",
    ),
    _each("ReduceStd", "reduces", axis=1, composed="deviation"),
    _each("CountNonZero LogSumExp MaxDim MedianDim MinDim Std Var", "reduces", axis=1),
    _each("LpNorm", "reduces", axis=2, composed="norm"),
    _each("LinalgVectorNorm Norm", "reduces", axis=2),
    _each("Max Min", "mixes", kernel="fold"),
    _each("L2Loss", "mixes", kernel="half_square"),
    _each("Trace", "mixes", composed="trace"),
    _each("MedianExt", "mixes"),
    # along axes
    _each("LogSoftmax LogSoftmaxExt Softmax", "along", axis=1, default=-1, kernel="softmax"),
    _each("CumProd CumSum CumsumExt", "along", axis=1, kernel="running"),
    _each("Cummax Cummin", "along", axis=1, kernel="running_most"),
    _each("LogCumsumExp", "along", axis=1),
    _each("Sort SortExt", "along", axis=1, default=-1, kernel="sort"),
    _each("ArgSort", "along", axis=1, default=-1),
    _each("TopK", "along", default=-1, kernel="top"),
    _each("TopkExt", "along", axis=2, default=-1, kernel="top"),
    _each("L2Normalize", "along", axis=1, composed="normal"),
    _each("ReverseV2", "along", axis=1, view="reversed"),
    _each("Roll", "along", axis=2),
    _each("LayerNorm", "normalises", kernel="layer_norm"),
    _each("LayerNormExt", "normalises"),
    _each("SearchSorted", "searches", kernel="search"),
    _each("LogSoftmaxGrad SoftmaxBackward", "unknown", axis=2, default=-1, kernel="softmax_grad"),
    _each("LayerNormGrad", "unknown", kernel="layer_norm_grad"),
    _each("L2NormalizeGrad", "unknown", composed="normal_grad"),
    # products
    _each("BatchMatMul BatchMatMulExt MatMul MatMulExt Mm", "contracts", kernel="product"),
    _each("Dense", "along", default=-1, kernel="product"),
    _each("Ger", "unknown", composed="outer"),
    # other shapes
    _each(
        "ExpandDims ExpandDimsView Flatten FlattenExt Reshape Squeeze View",
        "reshapes",
        view="reshape",
    ),
    _each("ReshapeExt Unsqueeze", "reshapes"),
    _each("Transpose TransposeView", "transposes", view="transposed"),
    _each("Permute", "transposes"),
    _each("TransposeExtView", "swaps", view="swapped"),
    _each("SwapAxes TransposeExt", "swaps"),
    _each("BroadcastTo BroadcastToView", "broadcasts", view="broadcast"),
    _each("Tile", "broadcasts", kernel="tile"),
    _each("RepeatElements RepeatInterleaveInt", "repeats"),
    # parts of an array
    _each("Slice", "slices", view="slice"),
    _each("StridedSlice", "slices_strided", view="strided_slice"),
    _each("SliceExt", "slices_one", axis=1),
    _each("Narrow", "narrows", axis=1, view="narrowed"),
    _each("NarrowView", "narrows", axis=1),
    _each("SelectExt", "drops_axis", axis=1, view="selected"),
    _each("Unstack", "drops_axis", axis=1, default=0, view="parts"),
    _each("SelectExtView SelectView UnstackExt UnstackExtView", "drops_axis", axis=1),
    _each("Split", "splits", axis=1, default=0, view="parts"),
    _each("SplitTensor SplitWithSize", "splits", axis=2, default=0, view="parts"),
    _each("Chunk", "splits", axis=2),
    _each("DiagPart Diagonal MatrixDiagPartV3", "unknown", view="diagonal"),
    _each("StridedSliceGrad", "unknown", kernel="slice_grad"),
    _each("SliceGrad", "unknown", kernel="block_grad"),
    _each("TensorCopySlices", "unknown", kernel="set_slice"),
    # joined and new arrays
    _each("Concat", "concatenates", axis=1, default=0, kernel="concat"),
    _each("Stack", "stacks", axis=1, default=0, kernel="concat"),
    _each("StackExt", "stacks", axis=1),
    _each("Meshgrid", "unknown", view="parts"),
    _each("Arange Range", "unknown", kernel="range"),
    _each("LinSpace LinSpaceExt", "unknown", kernel="linspace"),
    _each("Tril Triu", "unknown", kernel="triangle"),  # what they keep depends on the row's index
    _each("Diag Eye MatrixDiagV3 MatrixSetDiagV3 TraceGrad", "unknown", kernel="diagonal"),
    _each("ConstantPadND MirrorPad MirrorPadGrad Pad PadV3 PadV3Grad", "unknown", kernel="pad"),
    _each("ResizeNearestNeighborV2 ResizeNearestNeighborV2Grad", "unknown", kernel="resize"),
    # indices
    _each("Gather", "gathers", axis=2, kernel="gather"),
    _each("GatherD", "gathers_elements", axis=1, kernel="gather_along"),
    _each("GatherDExt", "gathers_elements", axis=1),
    _each("GatherDGradV2", "unknown", axis=1, kernel="gather_along"),
    _each("GatherNd GatherNdExt", "gathers_points", kernel="gather_places"),
    _each("OneHot", "one_hot", axis=4, default=-1, kernel="one_hot"),
    _each("OneHotExt", "one_hot", axis=4),
    _each("TensorScatterElements", "scatters_elements", axis=3, kernel="scatter_elements"),
    _each(
        "InplaceScatterSrc Scatter ScatterAddExt ScatterValue",
        "unknown",
        axis=1,
        kernel="scatter_elements",
    ),
    _each("IndexAddExt IndexFill", "unknown", axis=1, kernel="at_rows"),
    _each("ScatterNd", "unknown", kernel="scatter_places"),
    _each(
        "TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterMul TensorScatterSub "
        "TensorScatterUpdate",
        "scatters_points",
        kernel="changed_places",
    ),
    _each("UnsortedSegmentSum", "unknown", kernel="segments"),
    _each("UnsortedSegmentMax UnsortedSegmentMin", "unknown", kernel="segment_most"),
    # images and layers
    _each("Conv2D", "convolves", kernel="convolution"),
    _each("Conv2DExt Convolution", "convolves"),
    _each(
        "Conv2DBackpropFilter Conv2DBackpropInput Conv2DTranspose", "unknown", kernel="convolution"
    ),
    _each("MaxPool MaxPoolWithArgmaxV2", "by_batch", kernel="max_pool"),
    _each("MaxPoolGrad MaxPoolGradWithArgmaxV2", "unknown", kernel="max_pool"),
    _each("AvgPool", "by_batch", kernel="average_pool"),
    _each("AvgPoolGrad", "unknown", kernel="average_pool"),
    _each("AdaptiveAvgPool2D", "by_batch", composed="adaptive_average"),
    _each("AdaptiveAvgPool2DGrad", "unknown", composed="adaptive_average_grad"),
    _each("SoftmaxCrossEntropyWithLogits", "by_batch", composed="softmax_cross_entropy"),
    _each("BatchNorm", "unknown", composed="batch_norm"),
    _each("BatchNormGrad", "unknown", composed="batch_norm_grad"),
    _each("BiasAddGrad", "unknown", kernel="bias_grad"),
    _each("Dropout", "unknown", composed="dropout"),
    _each("DropoutGrad", "unknown", composed="dropout_grad"),
    _each("PReLUGrad", "unknown", composed="prelu_grad"),
    _each("SmoothL1LossGrad", "unknown", composed="smooth_l1_grad"),
    _each("BinaryCrossEntropyGrad", "unknown", composed="cross_entropy_grad"),
    _each("BinaryCrossEntropyWithLogitsBackward", "unknown", composed="logits_loss_grad"),
    _each("KLDivLossGrad", "unknown", composed="divergence_grad"),
    # effects
    _each("Assign", "unknown", update="{0} = {1};", writes=(0,)),
    _each("AssignAdd", "unknown", update="{0} += {1};", writes=(0,)),
    _each("AssignSub", "unknown", update="{0} -= {1};", writes=(0,)),
    _each("ScatterAdd ScatterUpdate", "unknown", kernel="scatter", writes=(0,)),
    _each("ScatterNdUpdate", "unknown", kernel="update_places", writes=(0,)),
    _each(
        "Adam",  # p, m, v, powers of both betas, rate, betas, epsilon, gradient
        "unknown",
        update="{1} += ({9} - {1}) * (1.0f - {6}); {2} += ({9} * {9} - {2}) * (1.0f - {7}); "
        "const float scale = {5} * sqrtf(1.0f - {4}) / (1.0f - {3}); "
        "{0} -= scale * {step} / (sqrtf({2}) + {8});",
        writes=(0, 1, 2),
    ),
    _each(
        "AdamWeightDecay",  # p, m, v, rate, betas, epsilon, decay, gradient
        "unknown",
        update="{1} = {4} * {1} + (1.0f - {4}) * {8}; {2} = {5} * {2} + (1.0f - {5}) * {8} * {8}; "
        "{0} -= {3} * ({1} / (sqrtf({2}) + {6}) + {7} * {0});",
        writes=(0, 1, 2),
    ),
    _each(
        "ApplyRMSProp",  # p, mean square, moment, rate, gradient, decay, momentum, epsilon
        "unknown",
        update="{1} = {5} * {1} + (1.0f - {5}) * {4} * {4}; "
        "{2} = {6} * {2} + {3} * {4} / sqrtf({1} + {7}); {0} -= {2};",
        writes=(0, 1, 2),
    ),
    _each(
        "ApplyAdagrad",  # p, sum of squares, rate, gradient
        "unknown",
        update="{1} = {1} + {3} * {3}; {0} -= {2} * {3} / sqrtf({1});",
        writes=(0, 1),
    ),
    _each(
        "ApplyMomentum",  # p, sum, rate, gradient, momentum
        "unknown",
        update="{1} = {1} * {4} + {3}; {0} -= {2} * {1};",
        writes=(0, 1),
    ),
    _each(
        "SGD",  # p, gradient, rate, sum, momentum, 1 before the first step
        "unknown",
        update="float step = {1} + {weight_decay} * {0}; if ({4} > 0.0f) {{ "
        "{3} = {5} > 0.0f ? step : {3} * {4} + (1.0f - {dampening}) * step; {5} = 0.0f; "
        "{last} }} {0} -= {2} * step;",
        writes=(0, 3, 5),
    ),
    _each("Custom", "unknown", kernel="custom"),
    # nodes that only code generation makes
    _each("Strided", "native", cpp="{0}"),
    _each("Taken", "native", view="taken"),
    _each("Turned", "native", kernel="turned"),
    _each("Panels", "native", kernel="panels"),
)
