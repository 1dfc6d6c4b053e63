"""Every error that a user can cause, in one tree.

    SamovarError
    ├─ SettingError            an option, environment variable or key of config.toml has a bad value
    ├─ CheckpointError         a model file is damaged, hostile or incomplete; names file and field
    │  ├─ MissingTensor        the architecture needs a tensor that the file does not hold
    │  └─ UnsupportedModel     well-formed, but this version cannot run it; says what is missing
    ├─ DownloadError           a model could not be fetched
    ├─ MemoryLimit             the model or its KV cache does not fit into the memory that is there
    ├─ RequestError            400: the request is wrong; `param` names the field
    │  ├─ MissingField         a required field is absent
    │  ├─ UnsupportedField     a recognised field that cannot be honoured
    │  ├─ ContextOverflow      the prompt does not fit into the context
    │  └─ TemplateError        the chat template refuses the messages, or there is none
    ├─ AuthenticationError     401
    ├─ ForbiddenError          403: foreign Origin or Host
    ├─ ModelNotFound           404
    ├─ QueueFull               429: too many requests wait already
    └─ Unavailable             503: loading, draining, or the engine was lost

Each class knows its HTTP status, its OpenAI error type and its code. Faults of our own are
plain exceptions and become 500 `internal_error`; they never carry a user's blame.
"""

from __future__ import annotations


class SamovarError(Exception):
    """Base of everything that a user can cause; `str(error)` is one readable line."""

    status = 400
    type = "invalid_request_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class SettingError(SamovarError):
    """An option, environment variable or key of config.toml has a value that cannot be used."""


class CheckpointError(SamovarError):
    """A model file is damaged, hostile or incomplete; the message names file and field."""

    status = 500
    type = "server_error"


class MissingTensor(CheckpointError):
    """The architecture asks for a tensor that the checkpoint does not hold."""


class UnsupportedModel(CheckpointError):
    """The model is well-formed, but this version cannot run it exactly; says what is missing."""


class DownloadError(SamovarError):
    """A model could not be fetched; the message says what to do."""

    status = 404
    code = "model_not_found"


class MemoryLimit(SamovarError):
    """The model, or one full context of it, does not fit into the memory that is there."""

    status = 503
    type = "server_error"


class RequestError(SamovarError):
    """The request is wrong: bad JSON, wrong type, value out of range."""


class MissingField(RequestError):
    """A required field is absent."""

    code = "missing_required_parameter"


class UnsupportedField(RequestError):
    """A recognised field, or one of its values, cannot be honoured by this server."""

    code = "unsupported_parameter"

    def __init__(self, message: str, *, param: str | None = None, value: bool = False) -> None:
        super().__init__(message, param=param)
        if value:
            self.code = "unsupported_value"


class ContextOverflow(RequestError):
    """The prompt leaves no room for a reply within the context.

    at_least: the count is only a lower bound, because the text was too long to tokenize it.
    """

    code = "context_length_exceeded"

    def __init__(
        self, num_prompt_tokens: int, num_ctx: int, *, param: str, at_least: bool = False
    ) -> None:
        subject = "messages" if param == "messages" else "prompt"
        bound = "at least " if at_least else ""
        super().__init__(
            f"This model's maximum context length is {num_ctx} tokens. However, your {subject} "
            f"resulted in {bound}{num_prompt_tokens} tokens. Please reduce the length of the "
            f"{subject}.",
            param=param,
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.num_ctx = num_ctx


class TemplateError(RequestError):
    """The chat template refuses these messages, or the model has none."""

    def __init__(self, message: str, *, param: str | None = "messages") -> None:
        super().__init__(message, param=param)


class AuthenticationError(SamovarError):
    """No key, or a wrong one."""

    status = 401
    code = "invalid_api_key"


class ForbiddenError(SamovarError):
    """The Host or Origin header belongs to somebody else's page."""

    status = 403


class ModelNotFound(SamovarError):
    """The request names a model that this server does not serve."""

    status = 404
    code = "model_not_found"

    def __init__(self, message: str, *, param: str | None = "model") -> None:
        super().__init__(message, param=param)


class QueueFull(SamovarError):
    """Too many requests wait already; `retry_after_s` says when to return."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, num_replies: int, *, retry_after_s: int = 1) -> None:
        super().__init__(
            f"The queue is full: {num_replies} replies are running or waiting; try again later."
        )
        self.retry_after_s = retry_after_s


class Unavailable(SamovarError):
    """The server cannot take the request now; `code` says why, `retry_after_s` when to return."""

    status = 503
    type = "server_error"

    def __init__(self, message: str, *, code: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s
