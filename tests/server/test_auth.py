"""The key and the pages of other sites, through the whole application."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from samovar.config import Settings

from .conftest import Api, settings_for

MODELS = "/v1/models"


@pytest.fixture(scope="module")
def locked(make_api: Callable[[Settings], Api]) -> Api:
    return make_api(settings_for(api_key=("first", "second"), cors=("https://page.org",)))


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first"},
        {"authorization": "bearer  first"},
        {"authorization": "Bearer second"},
        {"x-api-key": "first"},
        {"x-api-key": "first", "authorization": "Bearer nonsense"},
    ],
)
def test_each_key_opens(locked: Api, headers: dict[str, str]) -> None:
    assert locked.get(MODELS, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer "},
        {"authorization": "Bearer firs"},
        {"authorization": "Basic first"},
        {"authorization": "first"},
        {"x-api-key": ""},
        {"x-api-key": "First"},
    ],
)
def test_nothing_else_opens(locked: Api, headers: dict[str, str]) -> None:
    response = locked.get(MODELS, headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"


def test_health_needs_no_key(locked: Api) -> None:
    assert locked.get("/health").status_code == 200
    assert locked.get("/v1/health/").status_code == 200


def test_any_key_will_do_when_none_is_set(api: Api) -> None:
    assert api.get(MODELS, headers={"authorization": "Bearer whatever"}).status_code == 200
    assert api.get(MODELS, headers={"authorization": "Bearer "}).status_code == 200


def test_an_allowed_page_can_read_replies_and_errors(locked: Api) -> None:
    headers = {"origin": "https://page.org"}
    response = locked.get(MODELS, headers=headers)
    assert response.status_code == 401
    assert response.headers["access-control-allow-origin"] == "https://page.org"
    assert "x-request-id" in response.headers["access-control-expose-headers"]
    assert response.headers["vary"] == "Origin"


def test_a_browser_may_ask_before_it_has_a_key(locked: Api) -> None:
    response = locked.request(
        "OPTIONS",
        "/v1/chat/completions",
        headers={
            "origin": "https://page.org",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        },
    )
    assert response.status_code == 204
    assert response.headers["access-control-allow-origin"] == "https://page.org"
    assert "POST" in response.headers["access-control-allow-methods"]
    assert response.headers["access-control-allow-headers"] == "authorization,content-type"


def test_no_cors_headers_unless_asked_for(api: Api) -> None:
    response = api.request("OPTIONS", MODELS, headers={"access-control-request-method": "GET"})
    assert response.headers["allow"] == "GET, HEAD, OPTIONS"
    assert not [name for name in response.headers if name.startswith("access-control")]
