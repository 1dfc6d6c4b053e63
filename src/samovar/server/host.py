"""The model of a server: loaded once, before listening or at the first request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from samovar.config import Settings
from samovar.errors import (
    ContextOverflow,
    DownloadError,
    MemoryLimit,
    ModelNotFound,
    SamovarError,
    Unavailable,
)
from samovar.log import LOGGER
from samovar.server.errors import DEFAULT_RETRY_AFTER_S, GenerationFailed, shutting_down

if TYPE_CHECKING:
    from samovar.engine.async_engine import AsyncEngine
    from samovar.engine.engine import Engine
    from samovar.hub import Interrupt, LocalModel, Progress

LOAD_WAIT_S = 60.0  # how long a request waits for the model before it is told to come back
LOAD_RETRY_S = 5
PROMPT_THREADS = 4
MAX_COMPOSED = 4  # characters that Unicode's canonical composition makes one, at most

State = Literal["unloaded", "loading", "loaded"]
Result = TypeVar("Result")
ProgressBar = Callable[[], "AbstractContextManager[Progress | None]"]
Loader = Callable[[Settings], "tuple[LocalModel, Engine]"]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A loaded model: the id in replies, all names that mean it, and its running engine.

    longest_token: characters of the longest text that is one token.
    """

    id: str
    names: frozenset[str]
    engine: AsyncEngine
    longest_token: int

    def refuse_hopeless(self, texts: Iterable[str], *, param: str) -> None:
        """Raises ContextOverflow for texts that cannot fit into the context together.

        That spares tokenizing them: as it is, a body may hold megabytes. No token stands for more
        characters than its own text has. All that a vocabulary may do to a text before that is
        to compose characters.
        """
        num_ctx = self.engine.engine.info.num_ctx
        num_chars = sum(
            len(text) if text.isascii() else len(text) // MAX_COMPOSED for text in texts
        )
        at_least = -(-num_chars // self.longest_token)
        if at_least > num_ctx:
            raise ContextOverflow(at_least, num_ctx, param=param, at_least=True)

    def refuse_too_many(self, num_messages: int, *, param: str) -> None:
        """Raises ContextOverflow for more messages than the context has tokens."""
        num_ctx = self.engine.engine.info.num_ctx
        if num_messages > num_ctx:
            raise ContextOverflow(num_messages, num_ctx, param=param, at_least=True)


class ModelHost:
    """Holds the one model of a server.  Event loop only.

    load: resolves and loads the model of the settings; runs in a worker thread.
    """

    def __init__(self, settings: Settings, load: Loader | None = None) -> None:
        self._settings = settings
        self._load_model = load or load_model
        self._loading: asyncio.Task[ServedModel] | None = None
        self.served: ServedModel | None = None
        self.created = int(time.time())
        self.draining = False
        self.stopped = asyncio.Event()
        # Threads of their own: long prompts shall not hold up the loading or the end of a model.
        self._prompt_threads = ThreadPoolExecutor(PROMPT_THREADS, "samovar-prompt")
        self._idle_until = 0.0

    async def in_thread(self, function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """The result of a function that would hold up the event loop: parsing, tokenizing."""
        if self.stopped.is_set():
            raise shutting_down()
        call = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._prompt_threads, call)

    def note_request(self) -> None:
        """Notes that a request is about to go to the engine."""
        if not self._has_work():
            self._idle_until = time.monotonic()

    def stalled_s(self) -> float:
        """For how long the engine has had work without finishing a step."""
        if self.served is None or not self._has_work():
            return 0.0
        last_step_at = self.served.engine.engine.stats().last_step_at
        return time.monotonic() - max(last_step_at, self._idle_until)

    def _has_work(self) -> bool:
        if self.served is None:
            return False
        stats = self.served.engine.engine.stats()
        return bool(stats.running or stats.waiting)

    @property
    def state(self) -> State:
        if self.served is not None:
            return "loaded"
        return "unloaded" if self._loading is None else "loading"

    @property
    def id(self) -> str:
        """The id in replies."""
        if self.served is not None:
            return self.served.id
        return self._settings.alias or _own_name(self._settings.model)

    @property
    def names(self) -> frozenset[str]:
        """All names that mean the model."""
        if self.served is not None:
            return self.served.names
        return frozenset({self.id, _own_name(self._settings.model)})

    async def load(self) -> ServedModel:
        """Loads the model, once for all who wait.  Raises what loading raises; then try again."""
        if self.served is not None:
            return self.served
        if self._loading is None:
            self._loading = asyncio.create_task(self._load())
            # Whoever waited may be gone when it fails; _load has logged why.
            self._loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._loading)

    async def model(self, name: str | None) -> ServedModel:
        """The model that a request asks for by `name`.

        Raises ModelNotFound, Unavailable while loading or draining, or one of the two errors of
        `_public_load_error`.
        """
        if self.draining:
            raise shutting_down()
        if name and not self._settings.serves_one_model and name not in self.names:
            raise ModelNotFound(
                f"The model '{name[:200]}' does not exist; this server has '{self.id}'."
            )
        try:
            return await asyncio.wait_for(self.load(), LOAD_WAIT_S)
        except TimeoutError:
            raise Unavailable(
                "The model is still being loaded.",
                code="model_loading",
                retry_after_s=LOAD_RETRY_S,
            ) from None
        except Exception as error:
            raise _public_load_error(error) from None

    def drain(self) -> None:
        """Refuses new work from now on; what runs goes on."""
        self.draining = True

    async def close(self) -> None:
        """Ends what still runs, and the engine."""
        self.draining = True
        self.stopped.set()
        self._prompt_threads.shutdown(wait=False, cancel_futures=True)
        if self.served is not None:
            await self.served.engine.drain(1.0)
            await self.served.engine.close()

    async def _load(self) -> ServedModel:
        try:
            local, engine = await asyncio.to_thread(self._load_model, self._settings)
            vocabulary = map(engine.tokenizer.token_text, range(engine.tokenizer.vocab_size))
        except Exception as error:
            if not self._settings.preload:  # else it ends the server, with this very message
                unexpected = None if isinstance(error, SamovarError) else error
                LOGGER.error("the model could not be loaded: %s", error, exc_info=unexpected)
            raise
        else:
            model_id = self._settings.alias or local.alias or local.id
            names = {model_id, local.id, local.alias, self._settings.alias}
            from samovar.engine.async_engine import AsyncEngine

            front = AsyncEngine(engine)
            front.start()
            self.served = ServedModel(
                model_id, frozenset(filter(None, names)), front, max(map(len, vocabulary))
            )
            return self.served
        finally:
            self._loading = None


def load_model(
    settings: Settings,
    progress_bar: ProgressBar = nullcontext,
    interrupt: Interrupt | None = None,
) -> tuple[LocalModel, Engine]:
    """Finds, or downloads, the model of the settings and loads it; blocks."""
    from samovar import hub
    from samovar.engine.engine import Engine

    with progress_bar() as progress:
        local = hub.resolve(
            settings.model, offline=settings.offline, progress=progress, interrupt=interrupt
        )
        engine = Engine.load(
            local.path, settings.engine_options(), sha256=local.sha256, progress=progress
        )
    return local, engine


def _own_name(model: str | None) -> str:
    """What a model is called without an alias, known before it is loaded."""
    from samovar.hub import CATALOG, DEFAULT_MODEL

    if model is None or model in CATALOG:
        return model or DEFAULT_MODEL
    return Path(model).stem


def _public_load_error(error: Exception) -> SamovarError:
    """What a client is told when the model cannot be loaded: it can do nothing about the cause.

    The cause, which names files of this machine, is in the log.
    """
    message = "The model could not be loaded; the server's log says why."
    if isinstance(error, (DownloadError, MemoryLimit)):  # may be over when it is tried again
        return Unavailable(message, code="model_loading", retry_after_s=DEFAULT_RETRY_AFTER_S)
    return GenerationFailed(message)
