"""Every rule of `verify` refuses a plan that breaks it, and names the rule."""

import pytest

from mindspore_rl.compiler.ir.ir import Loop, Op, Where
from mindspore_rl.compiler.pipeline import prepare
from mindspore_rl.compiler.verify import _defined, _no_deadlock, _same_messages
from mindspore_rl.errors import ProgramError
from tests.compiler import inproc
from tests.compiler.programs import program_with

HERE = Where("program.py", 3, "x = y")


def _op(kind, **rest):
    return Op(f"{kind}#1", kind, rest.pop("targets", ()), (), rest.pop("reads", ()), HERE, **rest)


def _message(kind, name):
    return _op(kind, attrs=(("message", name),))


def test_a_variable_that_is_never_set():
    with pytest.raises(ProgramError, match=r"rule `defined`.*glue#1.*`y`.*\n.*program.py:3"):
        _defined("actor", (_op("glue", targets=("x",), reads=("y",)),))


def test_messages_in_another_order():
    one, two = "a a->b", "b a->b"
    bodies = {
        "a": (_message("send", one), _message("send", two)),
        "b": (_message("receive", two), _message("receive", one)),
    }
    with pytest.raises(ProgramError, match="rule `messages`"):
        _same_messages(bodies)


def test_a_message_in_a_loop_on_one_side():
    send, receive = _message("send", "a a->b"), _message("receive", "a a->b")
    loop = Loop("range#1", "range", "i", 3, (send,), HERE)
    with pytest.raises(ProgramError, match="rule `messages`"):
        _same_messages({"a": (loop,), "b": (receive,)})


def test_several_rows_of_each_environment_are_not_carried(tmp_path):
    rows = "ops.concat((obs, obs))"
    program = program_with(
        tmp_path,
        loop=f"reward = reward + 0.0 * both[: len(reward), 0]\nboth = {rows}",
        remove=[
            (
                "        for _ in msrl.iterations",
                f"        both = {rows}\n        for _ in msrl.iterations",
            )
        ],
    )
    with pytest.raises(ProgramError, match=r"rule `carried`(.|\n)*2 rows of each environment"):
        prepare(inproc.request(program, "MultipleLearners", 1), tmp_path)


def test_each_waits_for_the_other():
    bodies = {
        "a": (_message("receive", "m b->a"), _message("send", "n a->b")),
        "b": (_message("receive", "n a->b"), _message("send", "m b->a")),
    }
    with pytest.raises(ProgramError, match="rule `no deadlock`"):
        _no_deadlock(bodies, taken=True)
