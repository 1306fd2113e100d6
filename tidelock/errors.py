"""Everything Tidelock raises on purpose, in one tree.

    TidelockError
    ├── SettingsError          wrong use or settings               exit 2
    ├── Difference             a check found a difference          exit 1
    ├── Unreachable            something needed is not there       exit 3, HTTP 503
    ├── CursorMoved            another process was faster          nobody sees it: the work is read again
    ├── Failed                 an unexpected failure; see the log HTTP 500 internal_error
    ├── Ended                  a subscription has ended
    │   ├── Closed             by its owner or the server    closed
    │   ├── DefinitionChanged  the table has changed        definition_changed
    │   └── Overflowed         the client is too slow        slow_subscriber
    └── RequestError           this request cannot be answered     HTTP 400 invalid_request
        ├── InvalidJson        the body cannot be read             HTTP 400 invalid_json
        ├── Unauthorized       no key, or an unknown one           HTTP 401
        ├── Forbidden          the key may not do this             HTTP 403
        ├── NotFound           no such thing                       HTTP 404
        ├── NotAcceptable      no content type that the client accepts       HTTP 406, in `graphql.http`
        ├── Exists             the name is taken                   HTTP 409
        ├── AlreadyRunning     there can be one at a time          HTTP 409
        ├── ResumeExpired      what came next has expired HTTP 410 resume_expired
        ├── PayloadTooLarge    over a limit                        HTTP 413
        │   └── SnapshotTooLarge  the snapshot has too many rows  snapshot_too_large
        ├── UnsupportedMedia   content type or encoding not known  HTTP 415
        ├── InvalidDefinition  the definition is not valid                HTTP 422
        ├── InvalidFilter      the filter does not fit its columns    HTTP 422 invalid_definition, in `where`
        ├── RequestRefused     a GraphQL request with its errors   HTTP 400, in `graphql.requests`
        └── Overloaded         a queue is full                     HTTP 429

Vendor errors are translated into these where the vendor is imported. The outcome for one event is not an error
but a value: see `model.Verdict`.
"""

from __future__ import annotations

from typing import ClassVar


class TidelockError(Exception):
    """A failure described for people: what was wrong, where, what to do."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, field: str | None = None, detail: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        #: files, processes, log lines: for the operator only, in the log or on the command line
        self.detail = detail


class SettingsError(TidelockError):
    """Wrong use or settings: the command did not start its work."""

    code = "invalid_settings"
    exit_code = 2


class CursorMoved(TidelockError):
    """Another process has moved the cursor: nothing was done twice, and nothing is lost. Begin again where it is."""


class Difference(TidelockError):
    """A check found a difference between things that must be equal."""

    code = "difference"
    exit_code = 1


class Unreachable(TidelockError):
    """A server that is needed does not respond; the same call may work later."""

    code = "unavailable"
    exit_code = 3
    http_status = 503


class Failed(TidelockError):
    """Something unexpected: the log has the traceback; the client gets no internals."""

    code = "internal_error"

    def __init__(self) -> None:
        super().__init__("the server could not process this request because of an internal error; see its log")


class Ended(TidelockError):
    """A subscription has ended; `code` says why."""

    code = "ended"


class Closed(Ended):
    """By its owner, or because the server is stopping."""

    code = "closed"


class DefinitionChanged(Ended):
    """The table has changed shape or is gone: check the schema, then subscribe again."""

    code = "definition_changed"


class Overflowed(Ended):
    """Too many rows were queued: subscribe again."""

    code = "slow_subscriber"


class RequestError(TidelockError):
    """The request as a whole cannot be answered; nothing of it was recorded."""

    code = "invalid_request"
    exit_code = 2
    http_status = 400


class InvalidJson(RequestError):
    code = "invalid_json"


class Unauthorized(RequestError):
    code = "unauthorized"
    http_status = 401


class Forbidden(RequestError):
    code = "forbidden"
    http_status = 403


class NotFound(RequestError):
    code = "not_found"
    http_status = 404


class Exists(RequestError):
    """The name is already in use."""

    code = "exists"
    http_status = 409


class AlreadyRunning(RequestError):
    """One at a time: wait until the other finishes, or stop it."""

    code = "already_running"
    http_status = 409


class ResumeExpired(RequestError):
    """Reading on from there would miss changes: take a new snapshot."""

    code = "resume_expired"
    http_status = 410


class PayloadTooLarge(RequestError):
    code = "payload_too_large"
    http_status = 413


class SnapshotTooLarge(PayloadTooLarge):
    """Narrow the filter, so that the snapshot has fewer rows."""

    code = "snapshot_too_large"


class UnsupportedMedia(RequestError):
    code = "unsupported_media_type"
    http_status = 415


class InvalidDefinition(RequestError):
    """The definition is not valid: `field` names what is wrong with it."""

    code = "invalid_definition"
    http_status = 422


class Overloaded(RequestError):
    code = "overloaded"
    http_status = 429
