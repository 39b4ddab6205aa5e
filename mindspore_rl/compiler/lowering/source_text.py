"""Lines of generated source text."""

INDENT = "    "


def indented(lines: list[str]) -> list[str]:
    """Indents the lines of a block by one step."""
    return [INDENT + line if line else line for line in lines]


def assignment(targets: tuple[str, ...], call: str) -> str:
    """Returns the assignment of a call's results to targets, or the bare call."""
    return f"{', '.join(targets)} = {call}" if targets else call


def columns(targets: tuple[str, ...], call: str) -> str:
    """Returns the assignment of a sample's columns, a tuple of one column too, to targets."""
    return assignment(targets, call) if len(targets) != 1 else f"({targets[0]},) = {call}"


def class_name(region: str) -> str:
    """Returns the class name of a region's cell: `act_2` -> `Act2`."""
    return "".join(part.capitalize() for part in region.split("_"))
