"""Values with a form of their own: times, quantities, base64. Read strictly, kept in the server's canonical form."""

from __future__ import annotations

import base64
import binascii
import re
from datetime import datetime, timedelta, timezone
from fractions import Fraction
from typing import Any

QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:(?P<exponent>[eE][+-]?\d+)|(?P<suffix>[numkMGTPE]|[KMGTPE]i))?"
)
DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL_NAMES = {power: name for name, power in DECIMAL.items()}
NO_QUANTITY = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
TIME, MICRO_TIME = "2006-01-02T15:04:05Z07:00", "2006-01-02T15:04:05.000000Z07:00"
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)")
BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")


def quantity(value: Any) -> str:
    """`1024Mi` is `1Gi`, `0.5` is `500m`. Raises ValueError."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = f"{value:g}" if isinstance(value, float) else str(value)
    match = QUANTITY.fullmatch(value) if isinstance(value, str) and len(value) < 100 else None
    if match is None:
        raise ValueError(NO_QUANTITY)
    number, suffix, exponent = Fraction(match["number"]), match["suffix"] or "", match["exponent"] or ""
    if suffix in BINARY:
        number *= 1024 ** BINARY[suffix]
        if abs(number) >= 1024 and number.denominator == 1:
            return _binary(int(number))
    elif abs(int(exponent[1:] or 0)) > 30:
        raise ValueError(NO_QUANTITY)
    else:
        number *= Fraction(10) ** (int(exponent[1:] or 0) + DECIMAL[suffix])
    return _decimal(number, bool(exponent))


def _binary(number: int) -> str:
    power = 0
    while number % 1024 == 0 and power < 6:
        number, power = number // 1024, power + 1
    return f"{number}{'KMGTPE'[power - 1]}i" if power else str(number)


def _decimal(number: Fraction, exponent: bool) -> str:
    scaled = number * 10**9
    whole = -(-scaled.numerator // scaled.denominator) if scaled > 0 else scaled.numerator // scaled.denominator
    power = -9
    if not whole:
        return "0"
    while whole % 1000 == 0 and power < 18:
        whole, power = whole // 1000, power + 3
    if exponent:
        return f"{whole}e{power}" if power else str(whole)
    return f"{whole}{_DECIMAL_NAMES[power]}"


def moment(value: str, micro: bool) -> str:
    """A time in UTC, to the second or the microsecond. Raises ValueError."""
    layout = MICRO_TIME if micro else TIME
    match = _TIME.fullmatch(value)
    if match is None or (micro and len(match[7] or "") != 7):
        rest, wanted = (value, "2006") if not re.match(r"\d{4}-", value) else (value[19:], layout[19:])
        raise ValueError(f'parsing time "{value[:100]}" as "{layout}": cannot parse "{rest[:100]}" as "{wanted}"')
    digits = (match[7] or ".0")[1:7].ljust(6, "0")
    try:
        year, month, day, hour, minute, second = (int(match[index]) for index in range(1, 7))
        found = datetime(year, month, day, hour, minute, second, int(digits))
        if match[8] != "Z":
            hours, minutes = int(match[8][1:3]), int(match[8][4:])
            found -= timedelta(hours=hours, minutes=minutes) * (1 if match[8][0] == "+" else -1)
    except (ValueError, OverflowError):
        raise ValueError(f'parsing time "{value}": out of range') from None
    found = found.replace(tzinfo=timezone.utc)
    return found.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ").rjust(20, "0")


def encoded(value: str) -> str:
    """Base64 with its padding. Raises ValueError."""
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        match = BASE64.match(value)
        at = match.end() if match is not None else 0
        raise ValueError(f"illegal base64 data at input byte {at}") from None
    return value
