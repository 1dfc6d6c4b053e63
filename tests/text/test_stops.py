"""Stop strings: the first one that is complete ends the reply, no part of it gets out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from samovar.text.stops import StopMatcher

letters = "abA\n€"


def expected(text: str, stops: list[str]) -> tuple[str, bool]:
    """Character by character, as if each were a token."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@given(
    stops=st.lists(st.text(letters, max_size=4), max_size=4),
    pieces=st.lists(st.text(letters, max_size=5), max_size=12),
)
def test_any_cut_gives_the_same(stops: list[str], pieces: list[str]) -> None:
    matcher = StopMatcher(stops)
    want, want_stopped = expected("".join(pieces), stops)
    out, stopped, fed = "", False, ""
    for piece in pieces:
        assert not stopped
        fed += piece
        text, stopped = matcher.push(piece)
        out += text
        assert want.startswith(out)
        if not stopped:
            # What is held back, and nothing else, could begin a stop string.
            held = fed[len(out) :]
            assert held == "" or any(stop.startswith(held) for stop in stops)
        else:
            break
    assert stopped == want_stopped
    if not stopped:
        out += matcher.finish()
    assert out == want


def test_the_end_decides() -> None:
    matcher = StopMatcher(["END", "\n\n"])
    assert matcher.push("one E") == ("one ", False)
    assert matcher.push("N") == ("", False)
    assert matcher.push("O E") == ("ENO ", False)
    assert matcher.push("ND two\n\n") == ("", True)
    assert matcher.push("more") == ("", True)
    assert matcher.finish() == ""


def test_without_stops_everything_passes() -> None:
    matcher = StopMatcher(["", ""])
    assert matcher.push("abc") == ("abc", False)
    assert matcher.finish() == ""
