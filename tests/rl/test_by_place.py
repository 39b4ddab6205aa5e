"""Copies of functions that read the fields of records by place."""

import dataclasses
import inspect
import os
from typing import Any, NamedTuple

import pytest

from mindspore_rl.errors import ProgramError
from mindspore_rl.rl.by_place import Named, by_place, named_result, with_tuples

OUTCOME = (("reward", ()), ("ended", ()))
STEP = (("obs", ()), ("outcome", OUTCOME), ("action", ()))
GIVEN = 1.0, (2.0, 3.0), 5.0  # a step as a tuple


class Outcome(NamedTuple):
    reward: Any
    ended: Any


class Step(NamedTuple):
    obs: Any
    outcome: Outcome
    action: Any


RECORD = Step(1.0, Outcome(2.0, 3.0), 5.0)


def total(outcome, scale=10.0):
    return scale * outcome.reward + outcome.ended


@dataclasses.dataclass(frozen=True)
class Position:
    x: Any
    y: Any


def behind(position, by):
    return dataclasses.replace(position, x=position.x - by)


def doubled(obs):
    def twice(x):
        return 2.0 * x

    return {"obs": twice(obs)}


class Losses:
    def loss(self, step: Step, weight=7.0, *, shift=0.5):
        outcome = step.outcome
        _, inner = "é", step.outcome.ended  # columns count bytes
        return weight * step.obs + total(outcome) + self.other(scale=2.0, step=step) + inner + shift

    def other(self, step, scale):
        obs, (reward, _), action = step
        twice = (step
                 .action) * 2  # fmt: skip
        return [scale * (twice + reward) for _ in range(2)][0] + obs + action + len(step)

    def rest(self, step, *levels, **others):
        first, both = levels[0], levels[1:]
        return first * step.obs + both[0] + total(step.outcome) + self.rest_of(step, *both)

    def rest_of(self, step, *levels):
        return step.action * levels[0]

    def again(self, step):
        step = step.outcome
        return step.reward

    def unknown(self, step):
        return step.observation

    def replaced(self, step):
        step, weight = self.moved(step, step.outcome), 2.0
        step = step._replace(
            action=step.action + 1.0, obs=weight * step.obs)  # fmt: skip
        return self.other(step, 1.0) + step.outcome.ended

    def moved(self, step, outcome):
        outcome = outcome._replace(ended=4.0 + outcome.ended)._replace(reward=step.obs)
        return step._replace(outcome=outcome)

    def parts(self, step, flag):
        outcome, both = step.outcome, (step.outcome, flag)
        if flag:
            return both
        outcome = (step.obs, outcome[1])
        return outcome, outcome[0]

    def lacking(self, step):
        return step._replace(observation=0.0)

    short = lambda self, step: step.obs  # noqa: E731


def test_fields_are_read_by_place():
    losses = Losses()
    copy = by_place(losses.loss, (STEP, ()))
    assert copy(GIVEN, 3.0) == losses.loss(RECORD, 3.0)
    assert copy(GIVEN, shift=2.0) == losses.loss(RECORD, shift=2.0)
    assert by_place(total, (OUTCOME,))((2.0, 3.0)) == 23.0


def test_a_record_may_be_changed_and_assigned_again():
    losses = Losses()
    copy = by_place(losses.replaced, (STEP,))
    assert copy(GIVEN) == losses.replaced(RECORD)


def test_a_name_of_a_record_may_stand_for_a_tuple_too_if_no_field_is_read():
    losses = Losses()
    copy = by_place(losses.parts, (STEP, ()))
    assert [copy(GIVEN, flag) for flag in (0, 1)] == [losses.parts(RECORD, f) for f in (0, 1)]


def test_a_dataclass_may_be_changed():
    moved, record = Position(1.0, 2.0), Position(3.0, 4.0)
    copy = by_place(behind, ((("x", ()), ("y", ())), ()))
    assert copy((3.0, 4.0), 1.0) == dataclasses.astuple(behind(record, 1.0))
    known = Named(Position, (("x", None), ("y", None)))
    assert named_result(behind, given={"position": known}) == known
    assert named_result(behind, given={"position": Named.of(known.form)}).form == known.form
    assert moved == behind(behind(moved, 5.0), -5.0)


@dataclasses.dataclass(frozen=True)
class Doubled:
    score: Any

    def __post_init__(self):
        object.__setattr__(self, "score", 2.0 * self.score)


class Shifted(Outcome):
    def __new__(cls, reward, ended):
        return super().__new__(cls, reward + 1.0, ended)


def doubled_score(obs):
    return Doubled(obs)


def shifted(obs):
    return Shifted(obs, ended=obs)


@pytest.mark.parametrize(
    ("function", "method"), [(doubled_score, "__post_init__"), (shifted, "__new__")]
)
def test_a_class_that_changes_its_fields_is_refused(function, method):
    """A tuple in its place would have other values."""
    with pytest.raises(ProgramError, match=f"(?s)which has the method {method}.*a plain record"):
        with_tuples(function)
    assert named_result(function) is not None


def test_arguments_without_names_of_their_own_are_no_records():
    losses = Losses()
    copy = by_place(losses.rest, (STEP, (), ()))
    assert copy(GIVEN, 2.0, 3.0) == losses.rest(RECORD, 2.0, 3.0)
    with pytest.raises(ProgramError, match=r"a record is one of \*levels: name the parameter"):
        by_place(losses.rest, (STEP, (), STEP))


def test_the_result_is_that_of_no_function_inside():
    assert named_result(doubled).parts == (("obs", None),)


def test_a_function_without_records_is_itself():
    assert by_place(total, ((), ())) is total


def test_a_copy_has_the_lines_of_its_original():
    copy = by_place(Losses().loss, (STEP,))
    lines, first = inspect.getsourcelines(copy)
    original, place = inspect.getsourcelines(Losses.loss)
    assert (first, len(lines)) == (place, len(original))
    assert "step[1][1]" in lines[2] and "step.outcome.ended" in original[2]
    assert os.path.samefile(inspect.getsourcefile(copy), __file__)
    assert copy.__module__ == __name__


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unknown", "`observation` of a NamedTuple.*its fields are obs, outcome, action"),
        ("lacking", "`_replace` of a NamedTuple.*its fields are obs, outcome, action"),
        ("again", "`step`, a NamedTuple, is assigned again.*use another name"),
        ("short", "expected a method or function written with `def`"),
    ],
)
def test_another_use_of_a_record_is_refused(name, message):
    with pytest.raises(ProgramError, match=f"(?s){message}"):
        by_place(getattr(Losses(), name), (STEP,))
