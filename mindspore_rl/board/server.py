"""Serves the page of `msrl board` on this machine only."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindspore_rl.board.reading import Board, digest, message_times
from mindspore_rl.compiler.show.picture import with_times
from mindspore_rl.errors import MsrlError, install
from mindspore_rl.plan.plan import GRAPH_FILE
from mindspore_rl.trained.curves import AXES

HOST = "127.0.0.1"
HERE = Path(__file__).parent
NOTHING = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
OWN = f"{NOTHING}; style-src 'unsafe-inline'"
PAGE = f"{OWN}; script-src 'self'; connect-src 'self'; media-src 'self'; img-src 'self' data:"
SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def listen(port: int) -> socket.socket:
    """Opens the socket. Raises: MsrlError: the port is taken, or this user may not have it."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise MsrlError(
            f"port {port} of {HOST} cannot be used ({os.strerror(error.errno or 0)}); choose "
            "another with --port, 0 for any free one"
        ) from error


def server(root: Path) -> Any:
    """Makes the server of a folder's page; its `run(sockets=[...])` serves until Ctrl-C.

    Raises:
        MsrlError: the packages of the extra `board` are not installed, or there is no such folder.
    """
    try:
        import uvicorn  # noqa: PLC0415  (optional)

        app = application(root)
    except ImportError as error:
        name = str(error.name).partition(".")[0]
        text = f"msrl board needs {name}: {install('board')}"
        raise MsrlError(text) from error
    if not root.is_dir():
        raise MsrlError(
            f"{root} is no folder; expected the one in which runs are: msrl board FOLDER"
        )
    settings = {"log_level": "warning", "lifespan": "off", "timeout_graceful_shutdown": 1}
    return uvicorn.Server(uvicorn.Config(app, **settings))  # type: ignore[arg-type]


def application(root: Path) -> Any:
    """Returns the application: it answers requests to this machine by name, and only reads."""
    from plotly.offline import get_plotlyjs  # noqa: PLC0415  (optional, as all of these)
    from starlette.applications import Starlette  # noqa: PLC0415
    from starlette.exceptions import HTTPException  # noqa: PLC0415
    from starlette.middleware import Middleware  # noqa: PLC0415
    from starlette.middleware.trustedhost import TrustedHostMiddleware  # noqa: PLC0415
    from starlette.requests import Request  # noqa: PLC0415
    from starlette.responses import FileResponse, JSONResponse, Response  # noqa: PLC0415
    from starlette.routing import Route  # noqa: PLC0415

    board, lock = Board(root), threading.Lock()

    def run_of(request: Request) -> Path:
        """Returns the run that a request names, if it is one of the folder's."""
        name = request.query_params.get("run", "")
        if (run := board.runs().get(name)) is None:
            raise HTTPException(404, "there is no such run")
        return run

    def answer(request: Request, found: dict[str, Any], version: str) -> Response:
        """Returns what was found, or only its version if the page has that."""
        known = request.query_params.get("since") == version
        content = {"version": version} | ({} if known else found)
        return JSONResponse(content, headers={**SAFE, "Cache-Control": "no-store"})

    def overview(request: Request) -> Response:
        asked = request.query_params
        over = asked.get("over", "env_steps")
        if over not in AXES:
            raise HTTPException(400, f"over: expected one of {', '.join(AXES)}")
        with lock:
            runs = board.summaries()
            found, version = board.curves(asked.getlist("run"), asked.getlist("metric"), over)
        found |= {"folder": str(root), "runs": runs, "axes": AXES}
        return answer(request, found, digest([version, runs]))

    def detail(request: Request) -> Response:
        run_of(request)
        try:
            with lock:
                found = board.detail(request.query_params["run"])
        except (MsrlError, OSError) as error:
            raise HTTPException(404, str(error)) from error
        return answer(request, found, digest(found))

    def graph(request: Request) -> Response:
        run = run_of(request)
        try:
            with lock:
                times = message_times(board.profile(run))
            drawn = with_times((run / GRAPH_FILE).read_text(), times)
        except (OSError, SyntaxError, ValueError) as error:  # SyntaxError: no XML
            raise HTTPException(404, f"{GRAPH_FILE} cannot be read ({error})") from error
        headers = {**SAFE, "Content-Security-Policy": OWN}
        return Response(drawn, media_type="image/svg+xml", headers=headers)

    def film(request: Request) -> Response:
        for path in board.films(run_of(request)):
            if path.name == request.query_params.get("name"):
                return FileResponse(path, headers=SAFE)
        raise HTTPException(404, "there is no such film")

    def own(name: str, kind: str, text: Callable[[], str] | None = None) -> Route:
        def endpoint(request: Request) -> Response:
            content = text() if text else (HERE / name).read_text(encoding="utf-8")
            headers = {**SAFE, "Content-Security-Policy": PAGE}
            return Response(content, media_type=kind, headers=headers)

        return Route(f"/{'' if name.endswith('.html') else name}", endpoint)

    def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        content = {"error": error.detail}
        return JSONResponse(content, error.status_code, headers=SAFE)

    return Starlette(
        routes=[
            own("board.html", "text/html"),
            own("board.js", "text/javascript"),
            own("plotly.js", "text/javascript", get_plotlyjs),
            Route("/api/board", overview),
            Route("/api/run", detail),
            Route("/graph.svg", graph),
            Route("/film", film),
        ],
        # A page of another site whose name leads here (DNS rebinding) sends that name.
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])],
        exception_handlers={HTTPException: refused},
    )
