"""Programs after passes, read back from their text."""

from mindspore_rl.graph.cut.partition import Partition
from mindspore_rl.graph.ir import Program
from mindspore_rl.graph.text import parse, render


def programs_of(result):
    """What a pass gave as programs."""
    if isinstance(result, Partition):
        return [result.program]
    found = result.values() if isinstance(result, dict) else [result]
    return [program for program in found if isinstance(program, Program)]


def read_back(_name, result):
    """For `pipeline.prepare`: nothing is lost between a pass and its text."""
    for program in programs_of(result):
        assert parse(render(program)) == program
