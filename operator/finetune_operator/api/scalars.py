"""How an unquoted word of YAML becomes a value, as the API server and kubectl have it.

They read YAML with sigs.k8s.io/yaml, which turns it into JSON: YAML 1.1's words for true and false,
numbers as in Go (`1e-4` is a number, `010` is 8, `1_000` is 1000), dates as strings. PyYAML differs in
several of these (`1e-4` is a string to it, a date is a date), so its resolver is not used.
"""

from __future__ import annotations

import math
import re

TRUE = frozenset(["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"])
FALSE = frozenset(["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"])
NULL = frozenset(("", "~", "null", "Null", "NULL"))
_NOT_IN_JSON = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INTEGER = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|(0|[1-9][0-9]*))")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?")
_DIGITS_AT_MOST = 400
"""Longer runs of digits are left a string: no field wants such a number and converting it takes long."""

Scalar = str | int | float | bool | None


def resolve(text: str) -> Scalar:
    """Give the value of a plain (unquoted, untagged) scalar.

    Whole floats come out as integers, because JSON does not tell `1.0` from `1`.

    Raises:
        ValueError: JSON has no such value (`.inf`, `.nan`).
    """
    if text in NULL:
        return None
    if text in TRUE:
        return True
    if text in FALSE:
        return False
    if _NOT_IN_JSON.fullmatch(text):
        raise ValueError(f"{text} does not exist in JSON")
    if text[0] not in "+-.0123456789" or len(text) > _DIGITS_AT_MOST or _DATE.fullmatch(text):
        return text
    return _number(text if text[0] == "." else text.replace("_", ""), text)


def _number(digits: str, text: str) -> Scalar:
    if match := _INTEGER.fullmatch(digits):
        sign, hexadecimal, binary, octal, decimal = match.groups()
        magnitude = (
            int(hexadecimal, 16)
            if hexadecimal
            else int(binary, 2)
            if binary
            else int(octal, 8)
            if octal
            else int(decimal)
        )
        return -magnitude if sign == "-" else magnitude
    if _FLOAT.fullmatch(digits):
        number = float(digits)
        if not math.isfinite(number):
            return text
        return int(number) if number.is_integer() and abs(number) < 1e21 else number
    return text
