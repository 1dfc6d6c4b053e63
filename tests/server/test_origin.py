"""Whose pages may talk to the server."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from samovar.errors import ForbiddenError
from samovar.server.errors import HttpError
from samovar.server.origin import OriginPolicy


def check(policy: OriginPolicy, host: str, origin: str | None = None) -> None:
    headers = {"host": host} | ({} if origin is None else {"origin": origin})
    policy.check(Headers(headers), "1.1")


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8377",
        "localhost.:8377",
        "app.localhost:1",
        "127.0.0.1:8377",
        "10.1.2.3",
        "[::1]:8377",
        "[fe80::1%25eth0]:80",
        "ai.example.org",
        "a.b.example.net:443",
    ],
)
def test_own_names_and_addresses_pass(host: str) -> None:
    check(OriginPolicy((), ("ai.example.org", "*.example.net")), host)


@pytest.mark.parametrize(
    "host",
    ["evil.org", "localhost.evil.org", "127.0.0.1.evil.org", "example.net", "xai.example.org"],
)
def test_a_foreign_host_is_refused(host: str) -> None:
    with pytest.raises(ForbiddenError, match="--allowed-host"):
        check(OriginPolicy((), ("ai.example.org", "*.example.net")), host)


def test_any_host_can_be_allowed() -> None:
    check(OriginPolicy((), ("*",)), "evil.org")


@pytest.mark.parametrize(
    "host", ["", "a/b", "u@localhost", "localhost:x", "localhost:99999", "[::1"]
)
def test_a_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(HttpError) as caught:
        check(OriginPolicy((), ()), host)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8377", "http://localhost:8377"),
        ("localhost", "http://localhost:80"),
        ("localhost", "https://localhost"),
        ("[::1]:8377", "http://[::1]:8377"),
        ("localhost:8377", "https://page.org"),
    ],
)
def test_own_and_allowed_origins_pass(host: str, origin: str) -> None:
    check(OriginPolicy(("https://page.org",), ()), host, origin)


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.org",
        "null",
        "http://localhost:3000",
        "http://localhost",
        "http://page.org",
        "https://page.org:444",
        "https://page.org.evil.org",
        "chrome-extension://localhost:8377",
        "http://[",
    ],
)
def test_a_foreign_origin_is_refused(origin: str) -> None:
    with pytest.raises(ForbiddenError, match="--cors"):
        check(OriginPolicy(("https://page.org",), ()), "localhost:8377", origin)


def test_any_origin_can_be_allowed() -> None:
    check(OriginPolicy(("*",), ()), "localhost:8377", "https://evil.org")
