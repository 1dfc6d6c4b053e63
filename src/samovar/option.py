"""One option: its names, the values that it takes, and how a value is read and checked."""

from __future__ import annotations

import ipaddress
import json
import math
from dataclasses import dataclass
from typing import Any, Literal

from samovar.errors import SettingError

Group = Literal["model", "sampling", "machine", "server"]
VARIABLE_PREFIX = "SAMOVAR_"


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table: how an option is named, what it takes, what it does.

    kind: the type of one value.  multiple: the option may be given several times.
    low, high: inclusive bounds.
    built: False for an option that this version knows but cannot honour; giving it is an error.
    secret: the value is never shown.
    """

    name: str
    help: str
    group: Group
    kind: type
    default: Any
    multiple: bool
    short: str | None
    also: str | None
    metavar: str | None
    choices: tuple[str, ...]
    low: float | None
    high: float | None
    built: bool
    secret: bool

    @property
    def flag(self) -> str:
        """The long option of the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return VARIABLE_PREFIX + self.name.upper()

    def parse(self, value: object, label: str) -> Any:
        """`value`, a string or what TOML gives, as the field's type.

        Raises SettingError that begins with `label`.
        """
        if not self.built:
            raise SettingError(f"{label}: this version of samovar cannot do that yet.")
        if not self.multiple:
            return self._parse_one(value, label)
        if isinstance(value, str) and value.startswith("["):
            try:
                value = json.loads(value)
            except ValueError as error:
                raise SettingError(
                    f"{label} begins with '[' but is no JSON array: {error}."
                ) from error
        values = value if isinstance(value, list | tuple) else (value,)
        if self.high is not None and self.kind is str and len(values) > self.high:
            raise SettingError(
                f"{label} has {len(values)} values, but at most {self.high:g} can be given."
            )
        return tuple(self._parse_one(one, label) for one in values)

    def _parse_one(self, value: object, label: str) -> Any:
        shown = "that value" if self.secret else repr(value)
        if self.kind is bool:
            parsed = _BOOLEANS.get(value.lower()) if isinstance(value, str) else value
            if not isinstance(parsed, bool):
                raise SettingError(f"{label} is {shown}, but must be true or false.")
            return parsed
        if self.kind is str:
            if not isinstance(value, str):
                raise SettingError(f"{label} is {shown}, but must be a string.")
            if any("\ud800" <= c <= "\udfff" or c == "\0" for c in value):
                raise SettingError(f"{label} holds bytes that are not UTF-8 text.")
            if self.choices and value not in self.choices:
                raise SettingError(
                    f"{label} is {shown}, but must be one of {', '.join(self.choices)}."
                )
            if check := CHECKS.get(self.name):
                check(value, label)
            return value
        number = self._number(value)
        if number is None:
            noun = "an integer" if self.kind is int else "a number"
            raise SettingError(f"{label} is {shown}, but must be {noun}.")
        if not self._inside(number):
            raise SettingError(f"{label} is {shown}, but must be {self.bounds()}.")
        return number

    def _number(self, value: object) -> float | None:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return None
        try:
            if self.kind is int:
                return int(value) if isinstance(value, str) or float(value).is_integer() else None
            return float(value)
        except (ValueError, OverflowError):
            return None

    def _inside(self, number: float) -> bool:
        if not math.isfinite(number):
            return False
        if self.low is not None and number < self.low:
            return False
        return self.high is None or number <= self.high

    def bounds(self) -> str:
        """The allowed range in words, for a message or the documentation."""
        if self.low is not None and self.high is not None:
            return f"from {self.low} to {self.high}"
        if self.low is not None:
            return f"at least {self.low}"
        return "a finite number"


_BOOLEANS = {
    "1": True, "true": True, "yes": True, "on": True,
    "0": False, "false": False, "no": False, "off": False,
}  # fmt: skip


def _check_host(value: str, label: str) -> None:
    if value == "localhost":
        return
    try:
        ipaddress.ip_address(value)
    except ValueError:
        raise SettingError(
            f"{label} is {value!r}, but must be an IP address or 'localhost'."
        ) from None


def _check_origin(value: str, label: str) -> None:
    scheme, separator, rest = value.partition("://")
    if value not in ("*", "null") and not (scheme and separator and rest and "/" not in rest):
        raise SettingError(
            f"{label} is {value!r}, but must be '*' or an origin like 'https://example.org', "
            "without a path."
        )


def _check_allowed_host(value: str, label: str) -> None:
    if not value or "/" in value or not value.isprintable() or " " in value:
        raise SettingError(f"{label} is {value!r}, but must be a host name like 'example.org'.")


def check_key(value: str, label: str) -> None:
    if not value:
        raise SettingError(f"{label} is empty; a key needs at least one character.")
    if not value.isascii() or not value.isprintable() or " " in value:
        raise SettingError(
            f"{label} holds a key with a space or a character that no header can carry; "
            "use letters, digits and punctuation."
        )


def _check_not_empty(value: str, label: str) -> None:
    if not value:
        raise SettingError(f"{label} is empty.")


CHECKS = {
    "host": _check_host,
    "cors": _check_origin,
    "allowed_host": _check_allowed_host,
    "api_key": check_key,
    "api_key_file": _check_not_empty,
    "alias": _check_not_empty,
    "model": _check_not_empty,
    "chat_template": _check_not_empty,
    "isa": _check_not_empty,
    "stop": _check_not_empty,
}
