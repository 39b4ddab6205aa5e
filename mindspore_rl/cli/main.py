"""The command line: `msrl train | predict | eval | graph | profile | ...`."""

import argparse
import codecs
import locale
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mindspore_rl import __version__, config, programs
from mindspore_rl.cli import board, commands, completion, dataset, listing, predict, replay, sweep
from mindspore_rl.cli import check as checking
from mindspore_rl.cli import envs as environment_commands
from mindspore_rl.cli.doctor import doctor
from mindspore_rl.cli.job_flags import add_options, add_trust
from mindspore_rl.cli.parser import Parser, add_command, check_words
from mindspore_rl.compiler.pipeline import STAGES
from mindspore_rl.config import Range
from mindspore_rl.environments.registry import built_once
from mindspore_rl.errors import JobFailure, MsrlError, shortened
from mindspore_rl.jobs import registry
from mindspore_rl.jobs.job import ALGORITHM, GROUPS, PLACE
from mindspore_rl.jobs.options import Number
from mindspore_rl.platform import interpreter
from mindspore_rl.platform.held_signals import INTERRUPTED_EXIT, raised_by_hand
from mindspore_rl.platform.stdio import say
from mindspore_rl.runtime.best_checkpoint import CHOICES
from mindspore_rl.runtime.coordinator import admission, supervisor
from mindspore_rl.runtime.rank.worker_settings import prepare_mindspore
from mindspore_rl.trained import curves, export, pretrained
from mindspore_rl.trained.run import EVALUATION_SEED

SEED = Number(int, config.REQUIRED["seed"])
RUN = "run directory"
EPILOG = """examples:
  msrl train ppo --policy SingleLearnerCoarse --workers 2
  msrl train ppo --policy GPUOnly --env CartPole-v1 num_steps=256
  msrl train my/algorithm.py --policy my/policy.py
  msrl graph ppo --policy MultipleLearners --workers 2
  msrl eval runs/ppo-CartPole-v1-... --video episode.mp4
  msrl board runs"""


def main(argv: list[str] | None = None) -> int:
    """Runs a command. Returns: the exit code (0 success, 1 failure, 2 user's mistake)."""
    own = argv is None
    if argv is None:
        _use_utf8()
        argv = sys.argv[1:]
        completion.complete(_parser)
        interpreter.hasten_mindspore()
    prepare_mindspore()
    return _told(partial(_run, argv, below=own))


def _run(argv: list[str], below: bool) -> int:
    """Runs a command, in this process or in a child process that it supervises."""
    if any("\0" in word for word in argv):
        raise MsrlError("a word of the command has a NUL character; expected none")
    args, rest = _parser(argv).parse_known_args(argv)
    if rest:
        check_words(rest, args)
        args.assignments = [*args.assignments, *rest]

    if args.run is not doctor:
        admission.check_working_folder()

    def command(tell: supervisor.Tell | None) -> int:
        args.tell = tell
        with built_once():
            return _told(partial(args.run, args))

    return supervisor.run_below(command) if below else command(None)


def _told(command: Callable[[], int]) -> int:
    """Calls a function and prints its error, if it raises one. Returns: the exit code."""
    try:
        return command()
    except (MsrlError, JobFailure) as error:
        say(shortened(str(error)))
        return error.exit_code
    except KeyboardInterrupt as error:
        if place := raised_by_hand(error):
            say(f"{place}: raised KeyboardInterrupt, which is for Ctrl-C: raise another error")
            return MsrlError.exit_code
        say("interrupted")
        return INTERRUPTED_EXIT
    except BrokenPipeError:  # for example `msrl envs list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # a file or folder that the user named, or one in it
        if error.filename is None:
            raise
        name = shortened(os.fsdecode(error.filename), 500)
        say(f"{name} cannot be used: {error.strerror}")
        return 2


def _use_utf8() -> None:
    """Restarts this program in Python's UTF-8 mode if the locale has another encoding.

    File names, file contents and output are then the same in every locale, in this process and in
    all processes that it starts.
    """
    if codecs.lookup(locale.getpreferredencoding(False)).name != "utf-8":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    if sys.stdout is not None:
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _parser(argv: list[str]) -> argparse.ArgumentParser:
    parser = Parser(
        prog="msrl",
        description="Distributed reinforcement learning on MindSpore.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"msrl {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")

    text = "train an algorithm under a distribution policy"
    add_options(_command(subparsers, "train", commands.train, text, argv), *GROUPS)
    text = "show the graph, its cuts and its fragments"
    graph = _command(subparsers, "graph", commands.graph, text, argv)
    add_options(graph, ALGORITHM, PLACE)
    graph.add_argument(
        "--format",
        choices=("text", "svg", "mermaid", "dot", "source", "native"),
        default="text",
        help="text: operations, edges, cuts, placement; svg: the lines of the algorithm in the "
        "colours of the fragments that run them; mermaid: a picture of the fragments and their "
        "messages, for web pages; dot: of every operation, for Graphviz; source: the generated "
        "fragments; native: the C++ of their cells, from one iteration (default: text)",
    )
    graph.add_argument(
        "--stage", choices=STAGES, help="instead, the program as this pass of the compiler gives it"
    )

    predict.add(subparsers, _command, argv)
    checking.add(subparsers, _command, argv)
    replay.add(subparsers)

    _evaluation_arguments(subparsers)
    _sweep_arguments(subparsers, argv)
    _export_arguments(subparsers)

    text = "show where the time of a run went that was trained with --profile"
    profiled = add_command(subparsers, "profile", commands.profile, text)
    profiled.add_argument("run_directory", type=Path, metavar="RUN", help=RUN)
    add_trust(profiled)

    _plot_arguments(subparsers)
    board.add(subparsers)
    _dataset_arguments(subparsers)

    listing.add(subparsers)
    text = "list environments, or check one: does it keep its promises, and what does it give?"
    envs = add_command(subparsers, "envs", environment_commands.run, text)
    envs.add_argument("action", choices=("list", "check"), help="what to do")
    envs.add_argument(
        "name",
        nargs="?",
        help="environment to check: a name of the list, or my_file.py:MyEnv; or a part of the "
        "names to list",
    )

    text = "check this machine for training, and print a fix for each problem"
    add_command(subparsers, "doctor", doctor, text)
    for command in subparsers.choices.values():
        command.set_defaults(command=command)
    return parser


def _evaluation_arguments(subparsers: Any) -> None:
    text = "play a trained policy and print its return"
    evaluate = add_command(subparsers, "eval", commands.evaluate_run, text)
    evaluate.add_argument(
        "run_directory",
        type=Path,
        metavar="RUN",
        help=f"{RUN}, or a policy of the package: {', '.join(pretrained.names())}",
    )
    evaluate.add_argument(
        "assignments",
        nargs="*",
        metavar="KEY=VALUE",
        help="keys of the algorithm's configuration that differ from training",
    )
    evaluate.add_argument(
        "--checkpoint",
        default="last",
        metavar="WHICH",
        help=f"{CHOICES}; best: of the highest mean return, of an evaluation or over 100 episodes "
        "(default: last)",
    )
    evaluate.add_argument(
        "--episodes",
        type=Number(int, Range(1)),
        help=f"episodes to play (default: {commands.EPISODES}, or 1 with --render)",
    )
    evaluate.add_argument(
        "--json", action="store_true", help="print one JSON object, every return in it"
    )
    evaluate.add_argument(
        "--video", type=Path, metavar="FILE", help="make a video of the first episode: .mp4, .gif"
    )
    evaluate.add_argument(
        "--render", action="store_true", help="show an episode on the screen as it is played"
    )
    evaluate.add_argument(
        "--seed", type=SEED, default=EVALUATION_SEED, help="seed of the environments"
    )
    evaluate.add_argument(
        "--sample", action="store_true", help="sample actions instead of taking the most likely"
    )
    evaluate.add_argument("--env", help="play in this environment (default: as trained)")
    add_trust(evaluate)


def _sweep_arguments(subparsers: Any, argv: list[str]) -> None:
    text = "search for good values of an algorithm's configuration"
    swept = _command(subparsers, "sweep", sweep.sweep, text, argv)
    add_options(swept, ALGORITHM, PLACE)
    swept.add_argument(
        "--space",
        type=Path,
        required=True,
        metavar="FILE",
        help="YAML file of the values to try, `key: {low: 1.0e-4, high: 0.01, log: true}` or "
        "`key: {choices: [...]}`",
    )
    swept.add_argument(
        "--trials", type=Number(int, Range(1)), default=20, help="runs in all (default: 20)"
    )
    swept.add_argument(
        "--study",
        type=Path,
        default=Path("runs/sweep"),
        metavar="DIR",
        help="folder of the study and its runs; an existing study continues (default: runs/sweep)",
    )
    add_trust(swept)


def _export_arguments(subparsers: Any) -> None:
    text = "write a trained policy as a file that works without this project"
    exported = add_command(subparsers, "export", commands.export, text)
    exported.add_argument("run_directory", type=Path, metavar="RUN", help=RUN)
    exported.add_argument(
        "--format", choices=export.FORMS, default="onnx", help="form of the file (default: onnx)"
    )
    exported.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="file to write (default: policy.FORMAT in the run)",
    )
    exported.add_argument(
        "--checkpoint", default="last", metavar="WHICH", help=f"{CHOICES} (default: last)"
    )
    exported.add_argument(
        "--batch",
        type=Number(int, Range(1)),
        help="observations that the file takes at a time (default: any number; of mindir 1)",
    )
    add_trust(exported)


def _plot_arguments(subparsers: Any) -> None:
    text = "draw the learning curves of runs; runs that differ only in their seed are combined"
    plotted = add_command(subparsers, "plot", curves.plot, text)
    plotted.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="run directory, or a folder of some"
    )
    plotted.add_argument(
        "--metric",
        default="mean_return",
        help="a key of metrics.jsonl, also of `values` (default: mean_return)",
    )
    plotted.add_argument(
        "--over",
        choices=curves.AXES,
        default="env_steps",
        help="horizontal axis (default: env_steps)",
    )
    plotted.add_argument(
        "--output",
        type=Path,
        default=Path("curves.png"),
        metavar="FILE",
        help="picture to write, .png, .svg or .pdf (default: curves.png)",
    )


def _dataset_arguments(subparsers: Any) -> None:
    text = "make and show offline data sets, see docs/datasets.md"
    parser = subparsers.add_parser("dataset", help=text, description=text)
    kinds = parser.add_subparsers(required=True, metavar="COMMAND")

    text = "make a data set from a .npz or .hdf5 file, or from a folder of Minari's"
    imported = add_command(kinds, "import", dataset.import_file, text)
    imported.add_argument("source", type=Path, metavar="SOURCE", help="file or folder to read")
    imported.add_argument(
        "--env", help="environment of the data (default: the one that the file names)"
    )

    text = "make a data set from episodes played by the policies of runs"
    record = add_command(kinds, "record", dataset.record, text)
    record.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=RUN)

    for made in (imported, record):
        made.add_argument("dataset", type=Path, metavar="DATASET", help="file to write")
        made.add_argument("--append", action="store_true", help="add to DATASET if it exists")
        made.add_argument(
            "--length",
            type=Number(int, Range(2)),
            metavar="STEPS",
            help="steps of a record; longer episodes are cut into consecutive records (default: "
            "those of the longest episode, at most 1000)",
        )
    record.add_argument(
        "--episodes",
        type=Number(int, Range(1)),
        default=20,
        help="episodes to play with each checkpoint (default: 20)",
    )
    record.add_argument(
        "--checkpoint",
        type=Number(int, Range(0)),
        action="append",
        metavar="ITERATION",
        help="of every run; may be given more than once (default: the newest)",
    )
    record.add_argument(
        "--seed",
        type=SEED,
        default=1_000_003,
        help="seed of the environments and of sampled actions; another one for other episodes",
    )
    acting = record.add_mutually_exclusive_group()
    acting.add_argument("--sample", action="store_true", help="sample actions (the default)")
    acting.add_argument("--greedy", action="store_true", help="take the most likely actions")
    add_trust(record)

    text = "show a data set: columns, sources, and a histogram of returns"
    show = add_command(kinds, "show", dataset.show, text)
    show.add_argument("dataset", type=Path, metavar="DATASET", help="file to show")


def _command(
    subparsers: Any, name: str, run: Any, text: str, argv: list[str], former: str = ""
) -> Any:
    """Adds a subcommand, with an alias for its former name; its help lists the algorithm's keys."""
    epilog, aliases = None, [former] if former else []
    if argv[:1] in ([name], aliases) and {"-h", "--help"} & set(argv):
        words = [word for word in argv[1:] if word in registry.algorithms() or word.endswith(".py")]
        named = words[0] if words else "ppo"
        try:
            cls: Any = programs.trainer_class(registry.find_algorithm(named))
            keys = config.help_text(cls.Config)
            epilog = f"keys of {named} (key=value, or in a YAML file):\n{keys}"
        except MsrlError as error:
            epilog = str(error)
    whole = argparse.RawDescriptionHelpFormatter
    more = {"aliases": aliases, "epilog": epilog, "formatter_class": whole}
    return add_command(subparsers, name, run, text, **more)
