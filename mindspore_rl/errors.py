"""Errors that `msrl` prints without a traceback: mistakes of the user, and failures of a job.

`msrl` exits with 2 after a mistake and with 1 after a failure.
"""

from dataclasses import fields, is_dataclass
from pathlib import Path


class MsrlError(Exception):
    """A mistake of the user; the message says how to correct it."""

    exit_code = 2


class ConfigError(MsrlError):
    """A configuration value, key or file that cannot be used."""


class ProgramError(MsrlError):
    """A training loop that static analysis cannot read, or whose graph breaks a rule."""


class PolicyError(MsrlError):
    """A distribution policy that cannot serve an algorithm, an environment or a deployment."""


class UnknownEnvironmentError(MsrlError):
    """A name that is not that of an environment."""


class EnvironmentFailure(MsrlError):
    """An environment that cannot be built, raised an exception, or returned invalid values."""


class MissingPackageError(EnvironmentFailure):
    """An environment that needs a package that is not installed.

    Args:
        text: the message.
        extra: the extra of this project that installs the package; empty if none does.
    """

    def __init__(self, text: str, extra: str = "") -> None:
        super().__init__(text)
        self.extra = extra


class CheckpointError(MsrlError):
    """A checkpoint that is missing, damaged or from another job."""


class StorageError(MsrlError):
    """A file of a run that cannot be written."""

    exit_code = 1


class ReplayError(MsrlError):
    """A replay table that cannot be made, read, or used as requested."""


class HeldBackError(ReplayError):
    """A draw or an insert that must wait for other inserts or draws."""


class NumericsError(MsrlError):
    """A metric, action or priority that is not finite."""


def text_of(error: BaseException) -> str:
    """Returns the text of an exception, even if its own `__str__` raises.

    If a dataclass lacks an attribute, such as a configuration or an environment's spec, the text
    also lists the attributes that it has.
    """
    try:
        text = str(error)
    except Exception as other:  # noqa: BLE001  (the user's own code)
        return f"its text cannot be told: its __str__ raised {type(other).__name__}"
    if isinstance(error, AttributeError) and is_dataclass(error.obj):
        text += f"; it has {', '.join(field.name for field in fields(error.obj))}"
    return text


def described(error: BaseException) -> str:
    """Returns the type and text of an exception."""
    return f"{type(error).__name__}: {text_of(error)}"


def first_line(error: BaseException) -> str:
    """Returns what an exception says first; MindSpore's may begin with a ruler and a heading."""
    lines = [line.strip().removeprefix("- ") for line in text_of(error).splitlines()]
    heading, *rest = [line for line in lines if line.strip("-")] or [""]
    return f"{heading} {rest[0]}" if heading.endswith(":") and rest else heading


def shortened(text: str, limit: int = 20_000) -> str:
    """Shortens a text to about `limit` characters by leaving out its middle."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[{len(text) - limit} characters left out]\n{text[-half:]}"


class JobFailure(Exception):
    """A job that failed while it ran; the message shows which rank, where and why.

    Attributes:
        mistake: whether the failure is a mistake of the user; then the message has no traceback.
        interrupted: whether the job had been told to stop.
    """

    interrupted = False

    def __init__(self, message: str, mistake: bool = False) -> None:
        super().__init__(message)
        self.mistake = mistake

    @property
    def exit_code(self) -> int:
        """The exit code of `msrl`."""
        return 2 if self.mistake else 1


def install(extra: str = "") -> str:
    """Returns a text on how to install this project or one of its extras.

    It installs from the checkout, or from the file of the wheel where there is none, never by
    name: the package index has another project called mindspore_rl.
    """
    extras = f"[{extra}]" if extra else ""
    if not (Path(__file__).parents[1] / "setup.py").is_file():
        return f"with the wheel of msrl-fragments: pip install 'FILE.whl{extras}'"
    return f"in the checkout of mindspore_rl: pip install '.{extras}'"
