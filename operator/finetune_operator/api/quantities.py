"""Kubernetes quantities as numbers, for comparing them; the job keeps them as they were written."""

from __future__ import annotations

import re
from decimal import Decimal

from finetune_operator.api import patterns

_QUANTITY = re.compile(patterns.QUANTITY)
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -3, "u": -2, "m": -1, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


def amount(quantity: object) -> Decimal | None:
    """The number that a quantity stands for, in its resource's unit (bytes, cores); None if it is none.

    Follows https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/.
    """
    if type(quantity) is int:
        return Decimal(quantity)
    if not isinstance(quantity, str) or not _QUANTITY.search(quantity):
        return None
    number = quantity.rstrip("KMGTPEinumk")
    suffix = quantity[len(number) :]
    if suffix in _BINARY:
        return Decimal(number) * Decimal(1024) ** _BINARY[suffix]
    return Decimal(number) * Decimal(1000) ** _DECIMAL.get(suffix, 0)
