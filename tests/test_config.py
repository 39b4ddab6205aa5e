import json
from dataclasses import dataclass, field

import pytest
import yaml

from mindspore_rl.config import help_text, option, resolve, to_dict
from mindspore_rl.errors import ConfigError, MsrlError, described
from mindspore_rl.platform.yaml_files import read_yaml


@dataclass(frozen=True)
class Config:
    total_steps: int = field(default=1_000_000, metadata={"help": "length (environment steps)"})
    learning_rate: float = field(default=2.5e-4, metadata={"help": "Adam's step size"})
    anneal: bool = field(default=True, metadata={"help": "decay the learning rate to 0"})
    env: str = field(default="CartPole-v1", metadata={"help": "environment"})
    hidden_sizes: tuple[int, ...] = field(default=(64, 64), metadata={"help": "widths (units)"})
    target_kl: float | None = field(default=None, metadata={"help": "stop above (nats)"})
    names: tuple[str, ...] = ()

    def __post_init__(self):
        if self.env == "":
            raise ValueError("env is empty, expected a name")


@pytest.fixture
def yaml_file(tmp_path):
    def write(text):
        path = tmp_path / "ppo.yaml"
        path.write_text(text)
        return path

    return write


def by_assignment(text):
    return resolve(Config, None, {}, [text])


def test_precedence_is_defaults_yaml_flags_assignments(yaml_file):
    path = yaml_file("total_steps: 1\nlearning_rate: 1\nenv: A\n")
    flags = {"total_steps": "2", "env": None, "learning_rate": "2"}
    config = resolve(Config, path, flags, ["total_steps=3", "total_steps=4"])
    assert config == Config(total_steps=4, learning_rate=2.0, env="A")
    assert resolve(Config, None, {}, []) == Config()
    assert resolve(Config, yaml_file("# only a comment\n"), {}, []) == Config()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("total_steps=1e6", 1_000_000),
        ("total_steps=500_000", 500_000),
        ("total_steps=9007199254740993", 2**53 + 1),
        ("total_steps=64.0", 64),
        ("learning_rate=3e-4", 3e-4),
        ("anneal=False", False),
        ("env=a=b", "a=b"),
        ("hidden_sizes=32,16", (32, 16)),
        ("hidden_sizes=[1e2, 16]", (100, 16)),
        ("hidden_sizes=(32,)", (32,)),
        ("hidden_sizes=32", (32,)),
        ("hidden_sizes=[]", ()),
        ("target_kl=0.01", 0.01),
        ("target_kl=none", None),
        ("names=a,b", ("a", "b")),
    ],
)
def test_values_follow_the_annotation(text, expected):
    value = getattr(by_assignment(text), text.split("=")[0])
    assert value == expected
    assert type(value) is type(expected)


def test_yaml_values_follow_the_annotation(yaml_file):
    text = "total_steps: 1e6\nlearning_rate: 3e-4\nhidden_sizes: [8, 8]\ntarget_kl: null\n"
    config = resolve(Config, yaml_file(text), {}, [])
    assert config == Config(1_000_000, 3e-4, hidden_sizes=(8, 8))
    assert resolve(Config, yaml_file("total_steps: 0100\n"), {}, []).total_steps == 100


@pytest.mark.parametrize(
    "text",
    [
        "total_steps=1.5",
        "total_steps=many",
        "total_steps=1e999999999",
        "total_steps=inf",
        "total_steps=",
        "total_steps=none",
        "learning_rate=nan",
        "anneal=1",
        "hidden_sizes=64,x",
        "hidden_sizes=64,,64",
        "target_kl=small",
    ],
)
def test_a_wrong_value_names_origin_value_type_and_example(text):
    key, value = text.split("=")
    with pytest.raises(ConfigError) as error:
        by_assignment(text)
    message = str(error.value)
    assert message.startswith(f"argument {text}: {key} is {value!r} (str), expected ")
    assert f"for example `{key}=" in message


LAUGHS = "a: &a [1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 8)}]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)
CHAIN = "c0: &c0 [1]\n" + "".join(f"c{i}: &c{i} [*c{i - 1}]\n" for i in range(1, 3000))
DEEP, MANY = (
    "not valid YAML: .*nested more than 100 deep",
    "not valid YAML: .*more than 100,000 val",
)
MISTAKES = {
    "total_steps: true\n": r"total_steps is True \(bool\), expected int, .*`total_steps: 1000000`$",
    f"learning_rate: 1{'0' * 400}": r"learning_rate is 1000+ \(int\), expected float",
    "learning_rate: -.inf": "learning_rate is -inf, expected a finite number",
    "total_steps: 1\nlearning_rate: 1: 2\n": 'not valid YAML: .* in "ppo.yaml", line 2',
    "total_steps: 1\ntotal_steps: 2\n": 'the key total_steps stands there twice in "ppo.yaml"',
    "{anneal: true, 'anneal': false}": "the key anneal stands there twice",
    "? [gamma]\n: 1": "not valid YAML: .*unhashable key",
    "total_step: 1": "ppo.yaml: unknown key total_step; did you mean total_s",
    "7: 1": "unknown key 7; the keys are anneal, env, ",
    "total_steps: 1:30:00": r"total_steps is '1:30:00' \(str\), expected int",
    'env: "a\\0b"': r"env is 'a\\x00b' \(str\), expected str",  # no text has a NUL
    **dict.fromkeys(("- 1\n- 2\n", "only text", "a: 2024-13-45"), "ppo.yaml: "),
    **dict.fromkeys(("a: [1\nb: 2", "a: \x01", "a: b: c"), "not valid YAML"),
    "env: " + "[" * 20_000: DEEP,
    "env: " + "[" * 150 + "]" * 150: DEEP,
    "\n".join(" " * depth + "a:" for depth in range(2000)): DEEP,
    CHAIN: DEEP,
    "env: &a [*a]": DEEP,
    LAUGHS: MANY,
    f"{LAUGHS}env: *j": MANY,
}


@pytest.mark.parametrize("text", MISTAKES, ids=lambda text: text[:40])
def test_mistakes_of_a_yaml_are_told_in_a_line(yaml_file, text):
    path = yaml_file(text)
    with pytest.raises(ConfigError, match=MISTAKES[text]) as error:
        resolve(Config, path, {}, [])
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value) and (len(str(error.value)) < 300 or "1000" in text)


@pytest.mark.parametrize(
    ("flags", "assignments", "message"),
    [
        ({"hidden_sizes": "x"}, [], "flag --hidden-sizes: .*`--hidden-sizes 64,64`"),
        ({"hidden_size": 1}, [], "flag --hidden-size: .* did you mean hidden_sizes?"),
        ({}, ["learning_rate=inf"], "learning_rate is inf, expected a finite number, for"),
        ({}, ["learning_rat=1"], "unknown key learning_rat; did you mean learning_rate?"),
    ],
)
def test_mistakes_of_arguments_and_flags_are_told(flags, assignments, message):
    with pytest.raises(ConfigError, match=message):
        resolve(Config, None, flags, assignments)


def test_an_example_is_itself_accepted():
    for key in ("total_steps", "learning_rate", "anneal", "hidden_sizes", "target_kl"):
        with pytest.raises(ConfigError) as error:
            by_assignment(f"{key}=?")
        by_assignment(str(error.value).split("`")[1])


@pytest.mark.parametrize("text", ["total_steps", "=3", ""])
def test_an_assignment_needs_key_and_value(text):
    with pytest.raises(ConfigError, match="expected key=value"):
        by_assignment(text)


def test_aliases_that_stay_small_are_taken(yaml_file):
    file = yaml_file("hidden_sizes: &sizes [8, 8]\nnames: *sizes\n")
    with pytest.raises(ConfigError, match="names is "):  # numbers are not names
        resolve(Config, file, {}, [])
    assert read_yaml(yaml_file("a: &a [8, 8]\nb: *a\n")) == {"a": [8, 8], "b": [8, 8]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1_000", 1000),
        ("-7", -7),
        ("0x1F", 31),
        ("010", "010"),
        ("0b11", "0b11"),
        ("1:30:00", "1:30:00"),
        ("1:30.5", "1:30.5"),
        ("1e6", 1e6),
        ("1.5e-3", 1.5e-3),
        ("3.", 3.0),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("1e", "1e"),
        ("3-4", "3-4"),
        ("yes", True),
    ],
)
def test_numbers_in_a_yaml_look_as_in_its_version_1_2(yaml_file, text, expected):
    found = read_yaml(yaml_file(f"a: {text}\n"))["a"]
    assert (found, type(found)) == (expected, type(expected))


def test_a_missing_or_binary_yaml(tmp_path):
    path = tmp_path / "a{b}.yaml"
    with pytest.raises(ConfigError, match="cannot read this YAML file: No such file"):
        resolve(Config, path, {}, [])
    path.write_bytes(b"\xff\xfe\x00\xd8")
    with pytest.raises(ConfigError, match="not valid YAML"):
        resolve(Config, path, {}, [])
    with pytest.raises(ConfigError, match="Is a directory"):
        resolve(Config, tmp_path, {}, [])


def test_the_class_checks_become_config_errors():
    with pytest.raises(ConfigError, match="Config: env is empty, expected a name"):
        by_assignment("env=")
    assert issubclass(ConfigError, MsrlError)


def test_to_dict_goes_through_yaml_and_json(yaml_file):
    config = Config(learning_rate=1e-5, hidden_sizes=(8,), target_kl=0.1, names=("a, b",))
    assert resolve(Config, yaml_file(yaml.safe_dump(to_dict(config))), {}, []) == config
    assert json.loads(json.dumps(to_dict(config))) == to_dict(config)


def test_help_text_is_aligned():
    lines = help_text(Config).splitlines()
    assert len(lines) == 7
    assert " ".join(lines[0].split()) == (
        "total_steps int 1000000 length (environment steps), at least 1"
    )
    assert lines[0].index("int") == lines[1].index("float") == lines[2].index("bool")
    assert lines[4].split("  ")[0] == "hidden_sizes"
    assert "64,64" in lines[4]
    assert "float or none" in lines[5]
    assert lines[5].endswith("stop above (nats)")


def test_a_users_own_class():
    @dataclass(frozen=True)
    class Own:
        required: tuple[float, ...]
        made: int = field(default_factory=lambda: 3)

    assert resolve(Own, None, {"required": (1, 2.5)}, []) == Own((1.0, 2.5), 3)
    with pytest.raises(ConfigError, match="Own has no default for required: .* required=0.5,0.5"):
        resolve(Own, None, {}, [])
    assert "required" in help_text(Own)

    @dataclass(frozen=True)
    class Odd:
        sizes: dict

    with pytest.raises(ConfigError, match=r"Odd.sizes is annotated <class 'dict'>, expected int"):
        resolve(Odd, None, {}, [])
    with pytest.raises(ConfigError, match="int must be a dataclass"):
        resolve(int, None, {}, [])


@dataclass(frozen=True)
class Optional:
    target_kl: float | None = 0.01
    sizes: tuple[int, ...] = (1, 2)


def test_none_is_a_value_of_an_earlier_configuration(yaml_file):
    earlier = Optional(None, (3,))
    assert resolve(Optional, None, {}, [], base=to_dict(earlier)) == earlier
    over = resolve(Optional, yaml_file("sizes: [4]"), {"sizes": None}, [], base=to_dict(earlier))
    assert over == Optional(None, (4,))


@dataclass(frozen=True)
class Ranged:
    seed: int = 1
    gamma: float = option(0.99, "discount", ge=0, le=1)
    rate: float | None = option(None, "step size", gt=0)
    hidden: tuple[int, ...] = option((4,), "widths", least=1)  # as before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gamma=2", "gamma is 2.0, expected 0 to 1"),
        ("gamma=-0.1", "gamma is -0.1, expected 0 to 1"),
        ("rate=0", "rate is 0.0, expected more than 0"),
        ("hidden=4,0", "hidden is 4,0, expected at least 1"),
    ],
)
def test_numbers_are_in_their_range(text, message):
    with pytest.raises(ConfigError, match=f"^argument {text}: {message}"):
        resolve(Ranged, None, {}, [text])
    with pytest.raises(ConfigError, match="seed is 4294967296, expected 0 to 4294967295"):
        resolve(Ranged, None, {"seed": 2**32}, [])
    edges = resolve(Ranged, None, {}, ["gamma=1", "rate=1e-9", "hidden=1"])
    assert (edges.gamma, edges.rate, edges.hidden) == (1.0, 1e-9, (1,))
    assert "discount, 0 to 1" in help_text(Ranged)
    assert "step size, more than 0" in help_text(Ranged)
    assert "seed" in help_text(Ranged).splitlines()[0] and "0 to 4294967295" in help_text(Ranged)


@dataclass(frozen=True)
class Parted:
    steps: int = 12
    parts: int = option(4, "of a pass", ge=1, divides="steps")


def test_a_number_divides_that_of_another_field():
    assert resolve(Parted, None, {"steps": 10}, ["parts=5"]) == Parted(10, 5)
    with pytest.raises(ConfigError, match="Parted: parts=5 does not divide steps=12; choose one"):
        resolve(Parted, None, {}, ["parts=5"])
    assert "of a pass, divides steps, at least 1" in help_text(Parted)

    @dataclass(frozen=True)
    class Odd:
        parts: int = option(4, "of a pass", divides="stesp")

    with pytest.raises(ConfigError, match="Odd.parts divides 'stesp', expected a field's name"):
        resolve(Odd, None, {}, [])


def test_an_attribute_that_a_configuration_lacks():
    with pytest.raises(AttributeError) as caught:
        Config().learning_rat  # noqa: B018
    assert "learning_rat'; it has total_steps" in described(caught.value)
