"""Copy propagation: removes copies that boundaries and inlining leave."""

from collections import Counter
from dataclasses import replace
from typing import Any

from mindspore_rl.compiler.ir.ir import Branch, Expr, Item, Loop, Op, paths, walk


def tidy(body: tuple[Item, ...]) -> tuple[Item, ...]:
    """Applies both rewrites, `_rename_source` and `_use_source`, until nothing changes."""
    while True:
        counts = _Counts(body)
        changed = _first_rewrite(body, counts)
        if changed is None:
            return body
        body = changed


class _Counts:
    """Counts of the definitions and readers of each variable in the whole program."""

    def __init__(self, body: tuple[Item, ...]) -> None:
        self.definitions = Counter(t for op, _ in walk(body) for t in op.targets)
        self.readers = _readers(body)


def _readers(items: tuple[Item, ...]) -> Counter:
    reading = (item for item, _ in paths(items) if not isinstance(item, Loop))
    return Counter(name for item in reading for name in set(item.reads))


def _defined(item: Item) -> set[str]:
    return {t for op, _ in walk((item,)) for t in op.targets}


def _first_rewrite(body: tuple[Item, ...], counts: _Counts) -> tuple[Item, ...] | None:
    for position, item in enumerate(body):
        if isinstance(item, Op) and item.kind == "copy":
            found = _rename_source(body, position, counts) or _use_source(body, position, counts)
            if found is not None:
                return found
            continue
        for side in ("body", "orelse"):
            inner = _first_rewrite(getattr(item, side, ()), counts)
            if inner is not None:
                half: Any = {side: inner}
                return (*body[:position], replace(item, **half), *body[position + 1 :])
    return None


def _rename_source(
    body: tuple[Item, ...], position: int, counts: _Counts
) -> tuple[Item, ...] | None:
    """Rewrites `t = f(); x = t` to `x = f()` if nothing else reads `t`; else returns None."""
    copy = body[position]
    assert isinstance(copy, Op)
    (source,), (target,) = copy.args, copy.targets
    if counts.definitions[source] != 1 or counts.readers[source] != 1:
        return None
    for start in range(position - 1, -1, -1):
        item = body[start]
        if isinstance(item, Op) and source in item.targets:
            between = body[start + 1 : position]
            if any(target in _defined(i) or _readers((i,))[target] for i in between):
                return None
            named = replace(item, targets=tuple(target if t == source else t for t in item.targets))
            return (*body[:start], named, *between, *body[position + 1 :])
    return None


def _use_source(body: tuple[Item, ...], position: int, counts: _Counts) -> tuple[Item, ...] | None:
    """Rewrites `x = y; f(x)` to `f(y)` if `y` keeps its value until then; else returns None."""
    copy = body[position]
    assert isinstance(copy, Op)
    (source,), (target,) = copy.args, copy.targets
    if counts.definitions[target] != 1:
        return None
    rest, left = [], counts.readers[target]
    for index in range(position + 1, len(body)):
        if not left:
            break
        item = body[index]
        reads = _readers((item,))[target]
        if reads and source in _defined(item) and not isinstance(item, Op):
            return None
        left -= reads
        rest.append(_substitute(item, target, source))
        if source in _defined(item) and left:
            return None
    if left:
        return None
    return (*body[:position], *rest, *body[position + 1 + len(rest) :])


def _substitute(item: Item, old: str, new: Expr) -> Item:
    if isinstance(item, Loop):
        return replace(item, body=tuple(_substitute(i, old, new) for i in item.body))
    if isinstance(item, Branch):
        return replace(
            item,
            test=item.test.substitute({old: new}),
            reads=tuple(new if r == old else r for r in item.reads),
            body=tuple(_substitute(i, old, new) for i in item.body),
            orelse=tuple(_substitute(i, old, new) for i in item.orelse),
        )
    if old not in item.reads:
        return item
    reads = tuple(dict.fromkeys(new if r == old else r for r in item.reads))
    args = tuple(arg.substitute({old: new}) for arg in item.args)
    return replace(item, reads=reads, args=args)
