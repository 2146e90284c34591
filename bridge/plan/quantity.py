"""Kubernetes quantities as exact fractions, so that rounding happens once and in the direction PBS needs."""

from __future__ import annotations

import re
from fractions import Fraction

_DECIMAL = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_FORM = re.compile(
    r"([+-]?)([0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?[0-9]{1,2}))?"
)


def parse(text: object) -> Fraction:
    """The number that a quantity stands for; ValueError says what is wrong with it.

    >>> parse("1500m"), parse("1Gi"), parse("1e3"), parse(".5"), parse(2)
    (Fraction(3, 2), Fraction(1073741824, 1), Fraction(1000, 1), Fraction(1, 2), Fraction(2, 1))
    """
    match = _FORM.fullmatch(str(text))
    if match is None or isinstance(text, bool):
        raise ValueError(f"{str(text)[:60]!r} is not a quantity; write for example 500m, 2, 1.5, 512Mi, 4Gi")
    sign, number, suffix, exponent = match.groups()
    value = Fraction(number if number[-1] != "." else number[:-1])
    if exponent is not None:
        value *= Fraction(10) ** int(exponent)
    elif suffix in _BINARY:
        value *= 1024 ** _BINARY[suffix]
    else:
        value *= Fraction(1000) ** _DECIMAL[suffix or ""]
    if sign == "-" and value:
        raise ValueError(f"{str(text)[:60]!r} is negative")
    return value


def ceil(value: Fraction) -> int:
    """The next whole number: PBS must never give less than was asked for."""
    return -(-value.numerator // value.denominator)
