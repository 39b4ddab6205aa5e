"""One rule for the names of fragments, policies, algorithms, marks, hosts and runs."""

from pathlib import Path

import pytest

from mindspore_rl.compiler.pipeline import prepare
from mindspore_rl.environments import registry
from mindspore_rl.errors import PolicyError, ProgramError, UnknownEnvironmentError
from mindspore_rl.platform import names
from mindspore_rl.policy import WORKERS, Cut, DistributionPolicy, FragmentRule
from tests.compiler import inproc
from tests.compiler.programs import analyse_with

ODD = ["", ".", "..", "../../oops", "/oops", "-o", ".hidden", "a b", "a\nb", "a\n", "é", "a+b", 5]
ODD += ['a"""b', "a:b", "a'b", "x" * 101]
EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "split_learners.py"


@pytest.mark.parametrize("name", ODD)
def test_odd_names_are_no_names(name):
    assert not names.is_name(name)


@pytest.mark.parametrize(
    "name", ["actor", "a_b", "td-error", "lr=0.1", "10.0.0.1", "node-1.cluster", "_x"]
)
def test_usual_names_are_names(name):
    assert names.is_name(name)


def test_part_of_a_name_from_any_text():
    assert names.name_from("graph:CartPole-v1") == "graph-CartPole-v1"
    assert names.name_from("/home/me/my.envs/maze.py:Maze,size=3") == "maze-Maze-size-3"
    assert names.is_name(f"ppo-{names.name_from('/é' * 500 + '/a b.py:Class')}")


def two(fragment="actor", policy="Two", mark="transition", **more) -> DistributionPolicy:
    return DistributionPolicy(
        policy,
        "",
        (
            FragmentRule(fragment, ("environment", "actor"), WORKERS, "env"),
            FragmentRule("learner", ("replay", "gradient", "update")),
        ),
        (Cut(mark, "actor", "replay"), Cut("parameters", "update", "actor")),
        **more,
    )


@pytest.mark.parametrize("part", ["fragment", "policy", "mark"])
@pytest.mark.parametrize("name", ODD)
def test_a_policy_has_no_odd_names(part, name):
    with pytest.raises(PolicyError, match=r"has the name .*, expected at most 100 letters"):
        two(**{part: name})


def test_a_fragment_writes_nowhere_else(tmp_path, refused):
    """Names in users' files, with the message that `msrl` prints for each."""
    policy = tmp_path / "odd.py"
    policy.write_text(EXAMPLE.read_text().replace('Rule("actor"', 'Rule("../../oops"'))
    run = tmp_path / "runs" / "one"
    assert "fragment of policy SplitLearners has the name '../../oops'" in refused(
        "train", "ppo", "--policy", policy, "--run-dir", run
    )
    assert list(tmp_path.iterdir()) == [policy]


def test_an_algorithm_and_a_run_have_no_odd_names(tmp_path, refused):
    algorithm = tmp_path / 'a""" b.py'
    algorithm.write_text("")
    assert 'has the name \'a""" b\'' in refused("graph", algorithm)
    assert "has the name 'a\\nb'" in refused("train", "ppo", "--run-dir", tmp_path / "a\nb")
    assert list(tmp_path.iterdir()) == [algorithm]


def test_a_key_of_a_file_is_no_name(tmp_path, refused):
    file = tmp_path / "odd.yaml"
    file.write_text("algorithm: 5\n")
    assert "unknown algorithm '5'" in refused("graph", "--config", file)


@pytest.mark.parametrize("name", ["", ".x", "..a", "a..b", "a-b", "-m"])
def test_what_is_imported_is_a_module(name):
    with pytest.raises(UnknownEnvironmentError, match=r"no environment 'pettingzoo:.*simple_tag"):
        registry.spec(f"pettingzoo:{name}")


def test_each_fragment_has_a_file_of_its_own(tmp_path):
    """Also for two that are fused, whatever the others are called."""
    policy = DistributionPolicy(
        "Fused",
        "",
        (
            FragmentRule("a", ("environment",), WORKERS, "env"),
            FragmentRule("b", ("actor",), WORKERS, "env"),
            FragmentRule("a_b", ("replay", "gradient", "update")),
        ),
        (
            Cut("observation", "environment", "actor"),
            Cut("action", "actor", "environment"),
            Cut("transition", "actor", "replay"),
            Cut("parameters", "update", "actor"),
        ),
        colocate=(("a", "b"),),
    )
    plan, _ = prepare(inproc.request(inproc.PROGRAMS / "a2c.py", policy, 2), tmp_path)
    assert sorted(f.name for f in plan.fragments) == ["a+b", "a_b"]
    found = {path.name for path in (tmp_path / "fragments").iterdir()}
    assert found == {f.file for f in plan.fragments}
    assert len(found) == 2


def test_a_mark_of_the_loop_has_no_odd_name(tmp_path):
    with pytest.raises(ProgramError, match=r"the mark '\.\./up' is not supported here") as caught:
        analyse_with(tmp_path, loop="reward = msrl.boundary('../up', reward)")
    assert "expected at most 100 letters" in str(caught.value)
