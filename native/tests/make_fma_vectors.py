"""Writes fma_vectors.txt: bits of a, b, c, of a*b+c rounded once, and of that under FTZ and DAZ.

Exact rational arithmetic; random operands of several kinds and the cases that trap an emulation.
"""

from __future__ import annotations

import random
import struct
from fractions import Fraction
from pathlib import Path

SMALLEST_NORMAL = Fraction(1, 2**126)


def bits_of(x: float) -> int:
    return struct.unpack("<I", struct.pack("<f", x))[0]


def exact(bits: int) -> Fraction:
    sign, exponent, mantissa = bits >> 31, bits >> 23 & 255, bits & 0x7FFFFF
    value = (
        Fraction(mantissa, 2**149)
        if exponent == 0
        else Fraction(2**23 + mantissa) * Fraction(2) ** (exponent - 150)
    )
    return -value if sign else value


def round_nearest_even(x: Fraction, quantum: Fraction) -> Fraction:
    return round(x / quantum) * quantum  # round() of a Fraction goes to even


def rounded(x: Fraction, sign_of_zero: int, *, flush: bool) -> int:
    """The bits of x in float32; with flush, what rounds to below the normal range is zero."""
    if x == 0:
        return sign_of_zero << 31
    sign = int(x < 0)
    x = abs(x)
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    if Fraction(2) ** exponent > x:
        exponent -= 1
    normal = round_nearest_even(x, Fraction(2) ** (exponent - 23))
    if normal < SMALLEST_NORMAL:
        if flush:
            return sign << 31
        normal = round_nearest_even(x, Fraction(1, 2**149))
        return sign << 31 | int(normal * 2**149)
    if normal >= Fraction(2) ** 128:
        return sign << 31 | 0x7F800000
    exponent = normal.numerator.bit_length() - normal.denominator.bit_length()
    if Fraction(2) ** exponent > normal:
        exponent -= 1
    return sign << 31 | exponent + 127 << 23 | int(normal / Fraction(2) ** (exponent - 23)) - 2**23


def fma(a: int, b: int, c: int, *, flush: bool) -> int:
    if flush:
        a, b, c = (x if x >> 23 & 255 else x & 0x80000000 for x in (a, b, c))
    product, addend = exact(a) * exact(b), exact(c)
    product_sign = (a ^ b) >> 31
    # A zero sum is negative only if both parts are; two zeros of one sign keep it.
    zero = int(product_sign == c >> 31 == 1) if product == 0 and addend == 0 else 0
    return rounded(product + addend, zero, flush=flush)


def operands(rng: random.Random) -> list[tuple[int, int, int]]:
    def number(low: int, high: int, mask: int = 0x7FFFFF) -> int:
        return rng.getrandbits(1) << 31 | rng.randint(low, high) << 23 | rng.getrandbits(23) & mask

    cases = [(number(100, 150), number(100, 150), number(80, 170)) for _ in range(150)]
    cases += [(number(1, 254), number(1, 254), number(1, 254)) for _ in range(50)]
    for _ in range(100):  # c is the negated product, rounded: what remains is its rounding error
        a, b = number(100, 150), number(100, 150)
        cases.append((a, b, fma(a, b, 0x80000000, flush=False) ^ 0x80000000))
    for _ in range(100):  # a product far below c that decides a tie, or just does not
        c = number(120, 130) | 1
        half = number(1, 1, 0) & 0x80000000 | ((c >> 23 & 255) - 24) << 23
        tiny = (half - (rng.randint(1, 40) << 23)) & 0x7FFFFFFF
        cases.append((half | rng.getrandbits(2), 0x3F800000 | rng.getrandbits(1), c))
        cases.append((0x3F800001, half, c))
        cases.append((tiny, 0x3F800000, c))
    for _ in range(100):  # around the normal range's lower end
        cases.append((number(1, 70), number(50, 64), number(0, 3)))
        cases.append((number(60, 64, 0x7F), number(60, 66, 0x7F), number(0, 1)))
    for _ in range(40):  # around the upper end
        cases.append((number(190, 192), number(188, 190), number(253, 254)))
    special = [
        0,
        0x80000000,
        1,
        0x80000001,
        0x007FFFFF,
        0x00800000,
        0x3F800000,
        0xBF800000,
        0x7F7FFFFF,
        0xFF7FFFFF,
    ]
    cases += [(a, b, c) for a in special for b in special for c in special]
    return cases


if __name__ == "__main__":
    lines = []
    for a, b, c in operands(random.Random(1)):
        results = fma(a, b, c, flush=False), fma(a, b, c, flush=True)
        lines.append(" ".join(f"{x:08x}" for x in (a, b, c, *results)))
    Path(__file__).with_name("fma_vectors.txt").write_text("\n".join(lines) + "\n")
