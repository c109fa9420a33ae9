"""Problem documents (RFC 9457) for every error of the HTTP interface: type, title, status, detail, and a remedy.

The detail repeats no body and no header. `type` is a stable name; `docs/topology.md` lists them.
"""

import time
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from hanse import logs
from hanse.errors import HanseError, RemoteError, Unavailable
from hanse.topology.admission import Unknown
from hanse.topology.changes import Conflict
from hanse.topology.tokens import Forbidden

MEDIA_TYPE = "application/problem+json"
TITLES = {
    400: "The body is not JSON",
    401: "A token is needed",
    403: "The token is not valid here",
    404: "There is no such thing",
    405: "Not with this method",
    408: "The body came too slowly",
    409: "Another federator has it",
    413: "The body is too large",
    422: "Something in the request is not allowed",
    500: "The manager made an error",
    503: "Not now",
}
NAMES = {
    400: "bad-json",
    401: "token-needed",
    403: "token-not-valid",
    404: "not-found",
    405: "method-not-allowed",
    408: "too-slow",
    409: "conflict",
    413: "too-large",
    422: "not-allowed",
    500: "internal",
    503: "unavailable",
}


class NotLeading(Unavailable):
    """Another manager leads; `leader` is its URL, if known."""

    def __init__(self, leader: str) -> None:
        where = f"ask {leader}" if leader else "try again in a moment"
        super().__init__(f"This manager does not lead; {where}.")
        self.leader = leader


class NotFound(RemoteError):  # noqa: N818 - the name is the state, as in "404 Not Found"
    """There is no such federator."""


def problem(
    status: int, detail: str, *, extra: Mapping[str, object] | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return a problem document as a response."""
    body = {
        "type": f"urn:hanse:problem:{NAMES.get(status, 'other')}",
        "title": TITLES.get(status, "The request failed"),
        "status": status,
        "detail": detail,
        **(extra or {}),
    }
    return JSONResponse(body, status, dict(headers or {}), MEDIA_TYPE)


def of_error(error: HanseError) -> JSONResponse:
    """Return the problem document for one of our errors."""
    match error:
        case Unknown():
            return problem(401, str(error), headers={"WWW-Authenticate": "Bearer"})
        case Forbidden():
            return problem(403, str(error))
        case NotFound():
            return problem(404, str(error))
        case Conflict():
            return problem(409, str(error))
        case RemoteError():
            return problem(422, str(error))
        case NotLeading():
            return problem(503, str(error), extra={"leader": error.leader or None}, headers={"Retry-After": "1"})
        case Unavailable():
            return problem(503, str(error), headers={"Retry-After": "1"})
        case _:
            return problem(500, "The manager could not do this; its log says why.")


def install(app: FastAPI) -> None:
    """Make every error of the application a problem document."""
    app.state.refusal_lines = logs.LineLimit()

    @app.exception_handler(HanseError)
    async def _ours(request: Request, error: HanseError) -> JSONResponse:
        answer = of_error(error)
        if isinstance(error, Forbidden | Conflict):
            _log_refusal(request, answer.status_code, str(error))
        return _counted(request, answer)

    @app.exception_handler(Exception)
    async def _unforeseen(request: Request, error: Exception) -> JSONResponse:
        del error  # the server logs it, with its traceback
        return _counted(request, problem(500, "The manager made an error; its log says which."))

    @app.exception_handler(RequestValidationError)
    async def _not_valid(request: Request, error: RequestValidationError) -> JSONResponse:
        faults = error.errors()
        if any(fault["type"] == "json_invalid" for fault in faults):
            return _counted(request, problem(400, "The body cannot be read as JSON; expected one JSON object."))
        shown = [{"where": _where(fault["loc"]), "what": str(fault["msg"])[:200]} for fault in faults[:20]]
        first = f"{shown[0]['where']}: {shown[0]['what']}"
        more = f" ({len(faults) - 1} more)" if len(faults) > 1 else ""
        return _counted(request, problem(422, f"{first}{more}.", extra={"errors": shown}))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        return _counted(request, problem(error.status_code, str(error.detail), headers=error.headers))


def _log_refusal(request: Request, status: int, detail: str) -> None:
    """Log a refusal for lack of a token, for a wrong one, or for an id that belongs to another federator."""
    more = request.app.state.refusal_lines.take(time.monotonic())
    if more is not None:
        source = request.client.host if request.client is not None else ""
        what = f"{request.method} {request.url.path}"
        logs.note_security(
            "refused", "a request was refused", reason=NAMES[status], source=source, request=what, detail=detail, **more
        )


def _counted(request: Request, answer: JSONResponse) -> JSONResponse:
    """Count a refusal, by the name of its problem."""
    request.app.state.manager.counters.refuse(NAMES.get(answer.status_code, "other"))
    return answer


def _where(location: tuple[int | str, ...]) -> str:
    return "/".join(str(part)[:60] for part in location[:8])
