"""`msrl board`: a page on this machine that follows runs as they train."""

import argparse
import contextlib
import webbrowser
from pathlib import Path
from typing import Any

from mindspore_rl.cli.parser import add_command
from mindspore_rl.config import Range
from mindspore_rl.jobs.options import Number

PORT = 6007


def add(subparsers: Any) -> None:
    """Adds the subcommand."""
    text = (
        "show runs in the browser as they train: curves, graph, profile, messages and films; for "
        "users of this machine only"
    )
    parser = add_command(subparsers, "board", board, text)
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path("runs"),
        metavar="DIR",
        help="folder of the runs, or one run (default: runs)",
    )
    parser.add_argument(
        "--port",
        type=Number(int, Range(0, 65535)),
        default=PORT,
        help=f"port of 127.0.0.1; 0: any free one (default: {PORT})",
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def board(args: argparse.Namespace) -> int:
    """Runs `msrl board`, until Ctrl-C. Returns: the exit code."""
    from mindspore_rl.board.server import HOST, listen, server  # noqa: PLC0415  (optional packages)

    serving = server(args.folder)
    with listen(args.port) as opened:
        address = f"http://{HOST}:{opened.getsockname()[1]}/"
        print(f"{args.folder}: {address} (Ctrl-C ends it)", flush=True)
        if args.open:
            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            serving.run(sockets=[opened])
    return 0
