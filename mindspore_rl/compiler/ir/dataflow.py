"""Def-use edges of a program, loop-carried ones included, by reaching definitions."""

from collections.abc import Iterator

from mindspore_rl.compiler.ir.ir import Branch, Item, Loop, Op

INITIAL = "initial"
Reaching = dict[str, frozenset[str]]
Uses = dict[str, dict[str, frozenset[str]]]


def definitions(body: tuple[Item, ...]) -> Uses:
    """Finds, for each operation and branch, the operations that define what it reads.

    Effects (`$parameters`, ...) are ordinary variables here; `initial` stands for a variable's
    value before the program. Loops run at least once, so a definition inside a loop hides those
    before it, also in the body of a loop that may end early. In its body a loop defines its index.

    Returns: names, `{reader: {variable: {definer, ...}}}`.
    """
    uses: Uses = {}
    _run(body, {}, uses)
    return uses


def edges(body: tuple[Item, ...]) -> Iterator[tuple[str, str, str]]:
    """Yields (definer, variable, reader) for every edge, with readers in program order."""
    for reader, found in definitions(body).items():
        for variable, definers in sorted(found.items()):
            for definer in sorted(definers - {INITIAL}):
                yield definer, variable, reader


def exposed(items: tuple[Item, ...], after: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Returns the variables read before the items surely define them, in order.

    Args:
        items: parts of a program.
        after: variables read after the items; those defined only under a condition count too.
    """
    return tuple(first_reads(items, after))


def first_reads(items: tuple[Item, ...], after: tuple[str, ...] = ()) -> dict[str, str]:
    """Returns the variables of `exposed`, each with the name of the item that reads it first."""
    uses: Uses = {}
    _read("", after, _run(items, {}, uses), uses)
    found: dict[str, str] = {}
    for reader, reads in uses.items():
        for variable, definers in reads.items():
            if INITIAL in definers and not variable.startswith("$"):
                found.setdefault(variable, reader)
    return found


def _run(body: tuple[Item, ...], reaching: Reaching, uses: Uses, in_loop: bool = False) -> Reaching:
    for item in body:
        if isinstance(item, Op):
            _read(item.name, item.reads, reaching, uses)
            reaching = reaching | {name: frozenset({item.name}) for name in item.defines}
        elif isinstance(item, Loop):
            reaching = reaching | {item.index: frozenset({item.name})}
            last = _run(item.body, reaching, uses, in_loop=True)
            reaching = _run(item.body, _join(reaching, last), uses, in_loop=True)
            reaching.pop(item.index, None)
        else:
            assert isinstance(item, Branch)
            _read(item.name, item.reads, reaching, uses)
            taken = _run(item.body, reaching, uses)
            other = _run(item.orelse, reaching, uses)
            reaching = taken if item.first and in_loop else _join(taken, other)
    return reaching


def _read(name: str, reads: tuple[str, ...], reaching: Reaching, uses: Uses) -> None:
    found = uses.setdefault(name, {})
    for variable in reads:
        definers = reaching.get(variable, frozenset({INITIAL}))
        found[variable] = found.get(variable, frozenset()) | definers


def _join(left: Reaching, right: Reaching) -> Reaching:
    both = left.keys() | right.keys()
    initial = frozenset({INITIAL})
    return {name: left.get(name, initial) | right.get(name, initial) for name in both}
