"""The model of a server: its ids, when it is loaded, and what health tells of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from copy import copy
from typing import Any

import httpx
import pytest
from starlette.types import Message

from samovar.config import Settings
from samovar.engine.engine import Engine
from samovar.errors import (
    CheckpointError,
    DownloadError,
    MemoryLimit,
    ModelNotFound,
    SettingError,
    UnsupportedModel,
)
from samovar.hub import LocalModel
from samovar.server import health
from samovar.server.app import ROUTES
from samovar.server.host import ModelHost

from .conftest import PATIENCE_S, TINY, Api, FindLine, settings_for

TEXT = {"prompt": "Hello", "max_tokens": 1}


def test_health_shows_what_is_loaded(make_api: Callable[[Settings], Api]) -> None:
    lazy = make_api(settings_for(preload=False))
    assert lazy.get("/health").json() == {"status": "ok", "loaded": []}
    assert lazy.get("/v1/models").json()["data"][0]["status"] == "unloaded"
    assert lazy.get("/v1/models").json()["data"][0]["id"] == "llama"
    assert lazy.post("/v1/completions", TEXT).status_code == 200
    health = lazy.get("/health").json()
    assert (health["status"], health["loaded"]) == ("ok", ["llama"])
    assert (health["running"], health["waiting"], health["blocks_used"]) == (0, 0, 0)
    assert health["blocks_total"] > 0
    assert health["last_step_age_s"] >= 0


@pytest.mark.parametrize("path", ["", "/v1"])
@pytest.mark.parametrize("slash", ["", "/"])
def test_all_forms_of_a_path(api: Api, path: str, slash: str) -> None:
    assert api.post(f"{path}/completions{slash}", TEXT).status_code == 200
    assert api.get(f"{path}/models{slash}").status_code == 200
    assert api.get(f"{path}/models/llama{slash}").status_code == 200
    assert api.get(f"{path}/health{slash}").status_code == 200


def test_head_and_options(api: Api) -> None:
    for path, methods in ROUTES.items():
        allowed = api.request("OPTIONS", f"{path}x" if path == "/models/" else path)
        assert allowed.status_code == 204
        assert set(methods) < set(allowed.headers["allow"].split(", "))
    assert api.request("HEAD", "/v1/models").status_code == 200
    assert api.request("HEAD", "/v1/completions").status_code == 405


def test_the_model_of_a_request_is_not_checked_when_one_was_named(api: Api) -> None:
    for model in ("gpt-4", "llama", "", None):
        reply = api.post("/v1/completions", {**TEXT, "model": model})
        assert reply.json()["model"] == "llama"


@pytest.fixture(scope="module")
def unnamed(make_api: Callable[[Settings], Api]) -> Api:
    """A server that was started without a model, with a tiny one in the default's place.

    It is loaded at the first request.
    """

    def load(settings: Settings) -> tuple[LocalModel, Engine]:
        local = LocalModel(TINY, "default-model", "smollm2", None, None)
        return local, Engine.load(TINY, settings.engine_options())

    api = make_api(Settings(threads=1, ctx=64, preload=False))
    api.host._load_model = load
    return api


def test_another_name_than_the_defaults_is_not_found(unnamed: Api) -> None:
    for stream in (False, True):
        reply = unnamed.post("/v1/completions", {**TEXT, "model": "gpt-4", "stream": stream})
        assert reply.status_code == 404
    assert unnamed.host.state == "unloaded"  # nor was anything downloaded for it
    for model in ("smollm2", "default-model", "", None):
        reply = unnamed.post("/v1/completions", {**TEXT, "model": model})
        assert reply.json()["model"] == "smollm2"
    for stream in (False, True):
        reply = unnamed.post("/v1/completions", {**TEXT, "model": "gpt-4", "stream": stream})
        assert reply.status_code == 404
        error = reply.json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert unnamed.get("/v1/models/default-model").status_code == 200
    assert unnamed.get("/v1/models/gpt-4").status_code == 404


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (Settings(), {"smollm2"}),
        (Settings(model="gemma3:270m"), {"gemma3:270m"}),
        (Settings(model="/models/a.b.gguf"), {"a.b"}),
        (Settings(model="x.gguf", alias="house/1"), {"house/1", "x"}),
        (Settings(alias="house"), {"house", "smollm2"}),
    ],
)
def test_names_are_known_before_the_model_is_loaded(settings: Settings, names: set[str]) -> None:
    host = ModelHost(settings)
    assert host.names == names
    assert host.id in names


def test_names_stay_when_the_model_is_loaded(make_api: Callable[[Settings], Api]) -> None:
    for alias in (None, "house"):
        api = make_api(Settings(model=str(TINY), alias=alias, threads=1, ctx=64))
        before = api.host.id, api.host.names
        assert api.post("/v1/completions", {**TEXT, "model": "llama"}).status_code == 200
        assert (api.host.id, api.host.names) == before


def test_an_alias_is_the_id(make_api: Callable[[Settings], Api]) -> None:
    named = make_api(settings_for(alias="house/model:1", ctx=64))
    assert named.post("/v1/completions", TEXT).json()["model"] == "house/model:1"
    assert named.get("/v1/models/house/model:1").json()["id"] == "house/model:1"


def test_settings_are_the_defaults_of_a_request(make_api: Callable[[Settings], Api]) -> None:
    options = {"temperature": 1.5, "seed": 4, "max_tokens": 9, "top_p": 0.99}
    configured = make_api(settings_for(ctx=96, **options))
    plain = make_api(settings_for(ctx=96))
    implied = configured.post("/v1/completions", {"prompt": "Hello"})
    explicit = plain.post("/v1/completions", {"prompt": "Hello", **options})
    assert implied.json()["choices"] == explicit.json()["choices"]
    assert implied.headers["x-seed"] == "4"
    other = configured.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2})
    assert other.json()["usage"]["completion_tokens"] <= 2


def test_a_reader_that_stands_still_is_no_stalled_engine(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "STALLED_AFTER_S", 0.0)
    assert api.post("/v1/completions", TEXT).status_code == 200
    served = api.host.served
    assert served is not None

    async def main() -> httpx.Response:
        reading = asyncio.Event()

        async def send(message: Message) -> None:
            if message.get("body", b"").startswith(b"data: "):
                reading.set()
                await asyncio.Event().wait()

        body = {"prompt": "Hello", "stream": True}
        request = asyncio.create_task(api.call("/v1/completions", body, send))
        await reading.wait()
        while served.engine.engine.stats().running:
            await asyncio.sleep(0)
        response = await api.client.get("/health")
        assert not request.done()
        request.cancel()
        await request
        return response

    response = api.run(main())
    assert (response.status_code, response.json()["status"]) == (200, "ok")


def test_an_engine_that_stands_still_is_stalled(
    make_api: Callable[[Settings], Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = make_api(settings_for(ctx=64))
    assert api.post("/v1/completions", TEXT).status_code == 200
    served = api.host.served
    assert served is not None
    go_on = threading.Event()
    step = Engine.step

    def stand_still(engine: Engine, **options: Any) -> Any:
        go_on.wait(PATIENCE_S)
        return step(engine, **options)

    monkeypatch.setattr(Engine, "step", stand_still)

    async def main() -> list[httpx.Response]:
        request = asyncio.create_task(api.client.post("/v1/completions", json=TEXT))
        while not served.engine.engine.stats().waiting:
            await asyncio.sleep(0)
        # The last step is long ago, but the request has only come.
        monkeypatch.setattr(served.engine.engine, "_last_step_at", 0.0)
        early = await api.client.get("/health")
        monkeypatch.setattr(health, "STALLED_AFTER_S", 0.0)
        late = await api.client.get("/health")
        go_on.set()
        return [early, late, await request]

    early, late, reply = api.run(main())
    assert (early.status_code, late.status_code, reply.status_code) == (200, 503, 200)
    assert late.json()["status"] == "stalled"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (SettingError("--ctx 9 is too much", param="ctx"), 500, "internal_error"),
        (CheckpointError("/home/me/secret.gguf: damaged"), 500, "internal_error"),
        (UnsupportedModel("/home/me/secret.gguf: unknown"), 500, "internal_error"),
        (ModelNotFound("/home/me/secret.gguf: no such file"), 500, "internal_error"),
        (RuntimeError("/home/me/secret.gguf"), 500, "internal_error"),
        (PermissionError(13, "denied", "/home/me/secret.gguf"), 500, "internal_error"),
        (MemoryLimit("secret.gguf needs 9 GiB"), 503, "model_loading"),
        (DownloadError("secret: no connection"), 503, "model_loading"),
    ],
)
def test_why_a_model_cannot_be_loaded_is_for_the_log(
    make_api: Callable[[Settings], Api],
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    status: int,
    code: str,
) -> None:
    faults = [error]

    def load(settings: Settings) -> tuple[LocalModel, Engine]:
        if faults:
            raise copy(faults.pop())  # with a traceback the test's own would keep all alive
        return LocalModel(TINY, "llama", None, None, None), Engine.load(
            TINY, settings.engine_options()
        )

    api = make_api(settings_for(preload=False, ctx=64))
    api.host._load_model = load
    response = api.post("/v1/completions", TEXT)
    shown = response.json()["error"]
    assert (response.status_code, shown["type"]) == (status, "server_error")
    assert (shown["code"], shown["param"]) == (code, None)
    assert ("retry-after" if status == 503 else "x-should-retry") in response.headers
    assert str(error) not in response.text
    assert "secret" not in response.text
    assert str(error) in caplog.text
    # The next request tries again.
    assert api.get("/health").json() == {"status": "ok", "loaded": []}
    assert api.post("/v1/completions", TEXT).status_code == 200


def test_draining(make_api: Callable[[Settings], Api]) -> None:
    draining = make_api(settings_for(ctx=64))
    assert draining.post("/v1/completions", TEXT).status_code == 200
    draining.host.drain()
    response = draining.get("/health")
    assert (response.status_code, response.json()["status"]) == (503, "draining")
    assert response.headers["retry-after"]
    response = draining.post("/v1/completions", TEXT)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "shutting_down"
    assert response.headers["retry-after"]


def test_probes_that_succeed_are_logged_once_a_minute(
    make_api: Callable[[Settings], Api], request_log: FindLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed = make_api(settings_for(preload=False))

    def log_of_three_probes() -> list[int]:
        """The statuses in the log, up to that of a path which is no probe."""
        for path in ("/health", "/v1/health", "/health/", "/v1/models"):
            probed.get(path)
        statuses: list[int] = []
        while (line := request_log(lambda line: True)).path != "/v1/models":
            statuses.append(line.status)
        return statuses

    assert log_of_three_probes() == [200]
    assert log_of_three_probes() == []
    monkeypatch.setattr("samovar.server.record.PROBES_LOGGED_EVERY_S", 0.0)
    assert log_of_three_probes() == [200, 200, 200]
    monkeypatch.undo()
    probed.host.drain()
    assert log_of_three_probes() == [503, 503, 503]


def test_all_who_wait_share_one_load() -> None:
    async def main() -> int:
        loads = 0

        def load(settings: Settings) -> tuple[LocalModel, Engine]:
            nonlocal loads
            loads += 1
            local = LocalModel(TINY, "llama", None, None, None)
            return local, Engine.load(TINY, settings.engine_options())

        host = ModelHost(settings_for(ctx=64), load)
        await asyncio.gather(*(host.model(None) for _ in range(5)))
        await host.close()
        return loads

    assert asyncio.run(main()) == 1
