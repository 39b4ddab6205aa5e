"""Reads programs after passes back from their text."""

from mindspore_rl.compiler.ir.ir import Program
from mindspore_rl.compiler.ir.text import parse, render
from mindspore_rl.compiler.partition.partition import Partition


def programs_of(result):
    """Returns the result of a pass as programs."""
    if isinstance(result, Partition):
        return [result.program]
    found = result.values() if isinstance(result, dict) else [result]
    return [program for program in found if isinstance(program, Program)]


def read_back(_name, result):
    """A callback for `pipeline.prepare` that compares a pass's result with its parsed text."""
    for program in programs_of(result):
        assert parse(render(program)) == program
