"""The key: `Authorization: Bearer` or `x-api-key`."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers

from samovar.errors import AuthenticationError


class Keys:
    """The keys that open the server; without any it is open to all."""

    def __init__(self, keys: Sequence[str]) -> None:
        # Digests have one length, so comparing them tells nothing of a key's length.
        self._digests = tuple(_digest(key.encode()) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, headers: Headers) -> str:
        """Raises AuthenticationError unless the request shows one of the keys.

        What it returns stands for that key, and is empty where there are not several.
        """
        if not self._digests:
            return ""
        shown = _shown(headers)
        if not shown:
            raise AuthenticationError(
                "No API key was given. Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
            )
        # Every key is compared with every candidate: the time does not tell which one was near.
        matches = [d for s in shown for d in self._digests if hmac.compare_digest(_digest(s), d)]
        if not matches:
            raise AuthenticationError("The API key is not one of this server's keys.")
        return matches[0].hex() if len(set(self._digests)) > 1 else ""


def _shown(headers: Headers) -> list[bytes]:
    shown = []
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        shown.append(credentials.strip().encode("latin-1"))
    if key := headers.get("x-api-key"):
        shown.append(key.encode("latin-1"))
    return shown


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
