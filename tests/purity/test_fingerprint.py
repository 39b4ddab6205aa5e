"""Cells with different graphs have different fingerprints; cells with equal graphs, equal ones."""

import importlib
import re
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from mindspore_rl.environments import registry
from mindspore_rl.environments.in_graph.native_step import NativeEnvironment
from mindspore_rl.purity import fingerprint as fingerprints
from mindspore_rl.purity.fingerprint import Unknown, fingerprint
from mindspore_rl.rl.by_place import by_place, with_tuples

SCALE = 2.0
CLASS = {"__annotations__": {"seed": int}}
X = np.zeros((3, 2), np.float32)


def helper(x):
    return x * SCALE


@dataclass(frozen=True)
class Config:
    seed: int = 1
    rate: float = 0.1


class Sample(nn.Cell):
    def __init__(self, number=1, constant=(1.0, 2.0), name="w", closed=3.0, inner=4, slot=0):
        super().__init__(auto_prefix=False)
        self.number, self.table = number, Tensor(np.array(constant, np.float32))
        self.weight = Parameter(Tensor(np.zeros(2, np.float32)), name=name)
        self.dense = nn.Dense(2, inner)
        self.options = {"rates": [closed, None], "kinds": {"a", "b"}}
        self.call = lambda x: x + closed
        self.custom = ops.Custom(f"lib.so:reduce_{slot}", lambda x: x, lambda x: x, func_type="aot")

    def construct(self, x):
        return helper(self.dense(self.call(x) * self.number))


@pytest.fixture(autouse=True)
def only_with_sources(monkeypatch):
    """`Sample` reaches all loaded modules; earlier tests may have left some without their files."""
    for name, module in list(sys.modules.items()):
        if (file := getattr(module, "__file__", None)) and not Path(file).exists():
            monkeypatch.delitem(sys.modules, name)


def test_two_alike_are_the_same():
    assert fingerprint(Sample(), (X,)) == fingerprint(Sample(), (X + 1,))


@pytest.mark.parametrize("name", registry.graph_names())
def test_environments_in_the_graph_have_one(name):
    """Else MindSpore compiles their cells anew whenever a job starts."""
    assert fingerprint(registry.make_graph(name)) == fingerprint(registry.make_graph(name))


def test_patterns_of_regular_expressions():
    found = {fingerprint(re.compile(*args)) for args in (("a",), ("b",), ("a", re.I))}
    assert len(found) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"number": 2},
        {"number": True},
        {"number": 1.0},
        {"constant": (1.0, 3.0)},
        {"name": "v"},
        {"closed": 4.0},
        {"inner": 5},
        {"slot": 1},
    ],
    ids=str,
)
def test_values_that_a_graph_is_made_of(change):
    assert fingerprint(Sample(), (X,)) != fingerprint(Sample(**change), (X,))


@pytest.mark.parametrize(
    "inputs", [(X[:2],), (X.astype(np.int32),), ((X,),), (X, 1), (Tensor(X, ms.float16),)]
)
def test_types_of_inputs(inputs):
    assert fingerprint(Sample(), (X,)) != fingerprint(Sample(), inputs)


def test_a_tensor_is_an_array_of_its_type():
    assert fingerprint(Sample(), ((X, X),)) == fingerprint(Sample(), ((X, X + 1),))


def test_what_a_weight_holds_does_not_count():
    cell = Sample()
    before = fingerprint(cell, (X,))
    cell.weight.asnumpy()[...] = 7.0
    assert fingerprint(cell, (X,)) == before


def test_globals_of_functions_that_are_reached(monkeypatch):
    before = fingerprint(Sample(), (X,))
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert fingerprint(Sample(), (X,)) != before


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Imports modules with given texts. Returns: them."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def make(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
        made.extend(texts)
        return [importlib.import_module(name) for name in texts]

    yield make
    for name in made:
        sys.modules.pop(name, None)


ACT = "def act(x):\n    return x\n"


def test_sources_that_are_loaded(modules):
    (beside,) = modules(beside=ACT)
    before = fingerprint(Sample(), (X,))
    Path(beside.__file__).write_text(f"{ACT}\n")
    assert fingerprint(Sample(), (X,)) != before


def test_a_source_that_is_gone_cannot_be_seen(modules):
    (beside,) = modules(beside=ACT)
    Path(beside.__file__).unlink()
    with pytest.raises(Unknown, match="beside, which is removed"):
        fingerprint(beside.act)


def test_fragments_of_several_runs_may_be_loaded(modules):
    """Their names differ by the run's number, which does not count."""
    names = ("fragment_1_loop", "fragment_2_loop")
    one, other = modules(**dict.fromkeys(names, f"import sys\nsys.modules\n{ACT}"))
    assert fingerprint(one.act) == fingerprint(other.act)


@pytest.mark.parametrize(
    ("code", "counts"),
    [
        ("", False),
        ("import settings", True),
        ("from settings import scale", True),
        ("def later():\n    import settings", True),
        ("import between", True),
        ("from importlib import import_module", True),
        ("import sys\ndef later():\n    return sys.modules", True),
    ],
)
def test_modules_count_that_a_program_imports(code, counts, modules):
    """Another that is loaded would spoil the cache: each call of a notebook changes one."""
    texts = {"settings": "scale = 1.0\n", "between": "import settings\n"}
    settings, _, program = modules(**texts, program=f"{code}\n{ACT}")
    before = fingerprint(program.act)
    settings.scale = 2.0
    assert (fingerprint(program.act) != before) is counts


@pytest.mark.parametrize(
    ("code", "counts"),
    [
        ("class C:\n    def __init__(self, config):\n        self.x = config.seed", False),
        ("class C:\n    def construct(self):\n        return self.config.seed", True),
        ("class C:\n    @property\n    def x(self):\n        return self.config.seed", True),
        ("def f(c):\n    return [getattr(c, 'seed') for _ in c]", True),
    ],
)
def test_a_seed_counts_where_code_names_it(code, counts, monkeypatch):
    module = ModuleType("program")
    exec(compile(code, "program.py", "exec"), vars(module))  # noqa: S102
    module.Config = dataclass(type("Config", (), CLASS | {"__module__": "program"}))
    module.__file__ = __file__
    monkeypatch.setattr(fingerprints, "_users_modules", lambda: [("program", module)])
    one, other = (fingerprint(Config(seed=seed)) for seed in (1, 2))
    assert (one != other) is counts
    assert fingerprint(Config(rate=0.1)) != fingerprint(Config(rate=0.2))


def test_what_cannot_be_seen_is_said():
    cell = Sample()
    cell.options["lock"] = threading.Lock()
    with pytest.raises(Unknown, match="lock"):
        fingerprint(cell, (X,))


class Hyper:
    temperature = 1.0
    options = {"depth": 1}


SETTINGS = ModuleType("settings")


class Reader(nn.Cell):
    scale = 1.0

    def construct(self, x):
        return self.helped(x) * Hyper.temperature * SETTINGS.args.rate

    def helped(self, x):
        return x * self.scale


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (Hyper, "temperature", 2.0),
        (Hyper, "options", {"depth": 2}),
        (Reader, "scale", 2.0),
        (Reader, "helped", lambda self, x: x + 1.0),
        (SETTINGS, "args", SimpleNamespace(rate=0.2)),
    ],
    ids=["class", "class's dictionary", "own class", "method", "module"],
)
def test_attributes_of_classes_and_modules(owner, name, value, monkeypatch):
    """A constructor may set these from the configuration, and code reads them."""
    monkeypatch.setattr(SETTINGS, "args", SimpleNamespace(rate=0.1), raising=False)
    before = fingerprint(Reader(), (X,))
    assert fingerprint(Reader(), (X,)) == before
    monkeypatch.setattr(owner, name, value)
    assert fingerprint(Reader(), (X,)) != before


def test_a_counter_of_copied_functions_does_not_count():
    before = fingerprint(by_place)
    with_tuples(helper)
    assert fingerprint(by_place) == before


def test_a_jobs_variables_and_paths_do_not_count(monkeypatch):
    """A native step was compiled by a compiler that a variable names."""
    before = fingerprint(NativeEnvironment)
    monkeypatch.setenv("MSRL_COORDINATOR", "process 1")
    monkeypatch.syspath_prepend("elsewhere")
    assert fingerprint(NativeEnvironment) == before
