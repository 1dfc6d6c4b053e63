"""The model of a server: loaded once, before listening or at the first request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from samovar.config import Settings
from samovar.errors import ModelNotFound, Unavailable
from samovar.log import LOGGER
from samovar.server.errors import shutting_down

if TYPE_CHECKING:
    from samovar.engine.async_engine import AsyncEngine
    from samovar.engine.engine import Engine
    from samovar.hub import LocalModel, Progress

LOAD_WAIT_S = 60.0  # how long a request waits for the model before it is told to come back
LOAD_RETRY_S = 5

State = Literal["unloaded", "loading", "loaded", "failed"]
ProgressBar = Callable[[], "AbstractContextManager[Progress | None]"]
Loader = Callable[[Settings], "tuple[LocalModel, Engine]"]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A loaded model: the id in replies, all names that mean it, and its running engine."""

    id: str
    names: frozenset[str]
    engine: AsyncEngine


class ModelHost:
    """Holds the one model of a server.  Event loop only.

    load: resolves and loads the model of the settings; runs in a worker thread.
    """

    def __init__(self, settings: Settings, load: Loader | None = None) -> None:
        self._settings = settings
        self._load_model = load or load_model
        self._loading: asyncio.Task[ServedModel] | None = None
        self.served: ServedModel | None = None
        self._failed = False
        self.created = int(time.time())
        self.draining = False
        self.stopped = asyncio.Event()
        self._at_work: dict[object, float] = {}

    @contextmanager
    def working(self) -> Iterator[None]:
        """Notes that a request is with the engine."""
        key = object()
        self._at_work[key] = time.monotonic()
        try:
            yield
        finally:
            del self._at_work[key]

    def stalled_s(self) -> float:
        """For how long the engine has had work without finishing a step."""
        if self.served is None or not self._at_work:
            return 0.0
        last_step_at = self.served.engine.engine.stats().last_step_at
        return time.monotonic() - max(last_step_at, min(self._at_work.values()))

    @property
    def state(self) -> State:
        if self.served is not None:
            return "loaded"
        if self._loading is not None:
            return "loading"
        return "failed" if self._failed else "unloaded"

    @property
    def id(self) -> str:
        """The id in replies; before the model is loaded, the best guess at it."""
        return _guessed_id(self._settings) if self.served is None else self.served.id

    @property
    def names(self) -> frozenset[str]:
        """All names that mean the model."""
        return frozenset({self.id}) if self.served is None else self.served.names

    async def load(self) -> ServedModel:
        """Loads the model, once for all who wait.  Raises what loading raises; then try again."""
        if self.served is not None:
            return self.served
        if self._loading is None:
            self._loading = asyncio.create_task(self._load())
        return await asyncio.shield(self._loading)

    async def model(self, name: str | None) -> ServedModel:
        """The model that a request asks for by `name`.

        Raises ModelNotFound, or Unavailable while loading, draining or without an engine.
        """
        if self.draining:
            raise shutting_down()
        try:
            served = await asyncio.wait_for(self.load(), LOAD_WAIT_S)
        except TimeoutError:
            raise Unavailable(
                "The model is still being loaded.",
                code="model_loading",
                retry_after_s=LOAD_RETRY_S,
            ) from None
        if name and not self._settings.serves_one_model and name not in served.names:
            raise ModelNotFound(
                f"The model '{name[:200]}' does not exist; this server has '{served.id}'."
            )
        return served

    def drain(self) -> None:
        """Refuses new work from now on; what runs goes on."""
        self.draining = True

    async def close(self) -> None:
        """Ends what still runs, and the engine."""
        self.draining = True
        self.stopped.set()
        if self.served is not None:
            await self.served.engine.drain(1.0)
            await self.served.engine.close()

    async def _load(self) -> ServedModel:
        try:
            local, engine = await asyncio.to_thread(self._load_model, self._settings)
        except Exception as error:
            self._failed = True
            if not self._settings.preload:  # else it ends the server, with this very message
                LOGGER.error("the model could not be loaded: %s", error)
            raise
        else:
            model_id = self._settings.alias or local.alias or local.id
            names = {model_id, local.id, local.alias, self._settings.alias}
            from samovar.engine.async_engine import AsyncEngine

            front = AsyncEngine(engine)
            front.start()
            self.served = ServedModel(model_id, frozenset(filter(None, names)), front)
            return self.served
        finally:
            self._loading = None


def load_model(
    settings: Settings, progress_bar: ProgressBar = nullcontext
) -> tuple[LocalModel, Engine]:
    """Finds, or downloads, the model of the settings and loads it; blocks."""
    from samovar import hub
    from samovar.engine.engine import Engine

    with progress_bar() as progress:
        local = hub.resolve(settings.model, offline=settings.offline, progress=progress)
        engine = Engine.load(
            local.path, settings.engine_options(), sha256=local.sha256, progress=progress
        )
    return local, engine


def _guessed_id(settings: Settings) -> str:
    if settings.alias:
        return settings.alias
    if settings.model is None:
        from samovar.hub import DEFAULT_MODEL

        return DEFAULT_MODEL
    is_path = "/" in settings.model or settings.model.endswith(".gguf")
    return Path(settings.model).stem if is_path else settings.model
