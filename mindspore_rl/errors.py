"""Errors that `msrl` prints without a traceback: mistakes of the user, and failures of a job.

It exits with 2 after a mistake and with 1 after a failure.
"""


class MsrlError(Exception):
    """A mistake in what the user wrote or asked for; the message says how to put it right."""

    exit_code = 2


class ConfigError(MsrlError):
    """A configuration value, key or file that cannot be used."""


class ProgramError(MsrlError):
    """A training loop that static analysis cannot read, or whose graph breaks a rule."""


class PolicyError(MsrlError):
    """A distribution policy that cannot serve an algorithm, an environment or a deployment."""


class UnknownEnvironmentError(MsrlError):
    """A name that no environment has."""


class EnvironmentFailure(MsrlError):
    """An environment that cannot be built, that raised, or that gave what it must not."""


class MissingPackageError(EnvironmentFailure):
    """An environment that needs a package that is not installed.

    Args:
        text: the message.
        extra: of this project's, the one that brings the package; empty if none does.
    """

    def __init__(self, text: str, extra: str = "") -> None:
        super().__init__(text)
        self.extra = extra


class CheckpointError(MsrlError):
    """A checkpoint that is missing, damaged or of another job."""


class StorageError(MsrlError):
    """A file of a run that cannot be written."""

    exit_code = 1


class ReplayError(MsrlError):
    """A replay table that cannot be made, read, or used as asked for."""


class HeldBackError(ReplayError):
    """A draw or an insert that others' inserts or draws have to come before."""


class NumericsError(MsrlError):
    """A metric, action or priority that is not finite."""


def text_of(error: BaseException) -> str:
    """The text of an exception of the user's, whose own `__str__` may raise."""
    try:
        return str(error)
    except Exception as other:  # noqa: BLE001  (the user's own code)
        return f"its text cannot be told: its __str__ raised {type(other).__name__}"


def described(error: BaseException) -> str:
    """The type and text of an exception of the user's."""
    return f"{type(error).__name__}: {text_of(error)}"


def shortened(text: str, limit: int = 20_000) -> str:
    """A text with at most so many characters, and its middle left out if it has more."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[{len(text) - limit} characters left out]\n{text[-half:]}"


class JobFailure(Exception):
    """A job that failed while it ran; the message shows which rank, where and why.

    Attributes:
        mistake: whether it is the user's: then the message has no traceback.
        interrupted: whether the job had been told to stop.
    """

    interrupted = False

    def __init__(self, message: str, mistake: bool = False) -> None:
        super().__init__(message)
        self.mistake = mistake

    @property
    def exit_code(self) -> int:
        """What `msrl` exits with."""
        return 2 if self.mistake else 1


def install(extra: str = "") -> str:
    """How to install this project or one of its extras.

    By the folder, never by a name: an index has another project that is called mindspore_rl.
    """
    extras = f"[{extra}]" if extra else ""
    return f"in the checkout of mindspore_rl: pip install '.{extras}'"
