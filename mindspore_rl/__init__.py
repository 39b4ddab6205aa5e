"""Distributed reinforcement learning on MindSpore: write an algorithm, choose where it runs."""

__version__ = "0.1.0"


def install(extra: str = "") -> str:
    """How to install this project or one of its extras.

    By the folder, never by a name: an index has another project that is called mindspore_rl.
    """
    extras = f"[{extra}]" if extra else ""
    return f"in the checkout of mindspore_rl: pip install '.{extras}'"
