"""What all parts of the resource share: spelling on the wire, strictness, and kinds of strings."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, PlainValidator, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from finetune_operator.api import patterns

INT32_MAX = 2**31 - 1
_QUANTITY = re.compile(patterns.QUANTITY)


class Part(BaseModel):
    """A part of the resource: camelCase on the wire, snake_case in Python, values kept as written.

    Strict as a custom resource's schema is: `"16"` is not a number and `1` is not true. A null
    stands for an absent field, as the API server has it for fields that are not nullable.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        extra="forbid",
        strict=True,
        frozen=True,
        defer_build=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = {spelling for name, field in cls.model_fields.items() for spelling in (name, field.alias)}
        return {key: value for key, value in data.items() if value is not None or key not in known}


def fault(message: str, suggestion: str = "") -> PydanticCustomError:
    """An error of one of our own checks, in words that are shown to people as they are."""
    return PydanticCustomError("own_check", "{message}", {"message": message, "suggestion": suggestion})


@dataclass(frozen=True)
class Between:
    """The number in a fraction's string lies within bounds; read by pydantic and by the CRD generator."""

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None

    def __str__(self) -> str:
        bounds = (
            ("above", self.above),
            ("at least", self.at_least),
            ("below", self.below),
            ("at most", self.at_most),
        )
        return " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)

    def holds(self, number: float) -> bool:
        """Whether `number` is finite and within the bounds."""
        return (
            number < float("inf")
            and (self.above is None or number > self.above)
            and (self.at_least is None or number >= self.at_least)
            and (self.below is None or number < self.below)
            and (self.at_most is None or number <= self.at_most)
        )

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check after the string's own constraints."""

        def check(text: str) -> str:
            if not self.holds(number := float(text)):
                finite = "" if number < float("inf") else "finite and "
                raise fault(f"is {text}, must be {finite}{self}")
            return text

        return core_schema.no_info_after_validator_function(check, handler(source))


@dataclass(frozen=True)
class Checked:
    """A string judged by `check`, which raises `fault(...)`; may look at the validation context."""

    check: Callable[[str, bool], None]
    """Called with the text and whether the job is judged as a local one."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check after the string's own constraints."""

        def check(text: str, info: core_schema.ValidationInfo) -> str:
            self.check(text, bool((info.context or {}).get("local")))
            return text

        return core_schema.with_info_after_validator_function(check, handler(source))


def _check_quantity(value: Any) -> int | str:
    if type(value) is int:
        if value < 0:
            raise fault(f"is {value}, must be 0 or more")
        return value
    if not isinstance(value, str):
        raise PydanticCustomError("quantity_type", "must be a whole number or a string")
    if len(value) > 32 or not _QUANTITY.search(value):
        raise fault(patterns.EXPLANATIONS[patterns.QUANTITY])
    return value


Fraction = Annotated[str, Field(pattern=patterns.FRACTION, max_length=32)]
"""A number as a string: custom resources have no floats that survive every client."""
Quantity = Annotated[int | str, PlainValidator(_check_quantity)]
"""An amount of a resource as Kubernetes spells it, kept as written; a bare fraction is none."""
ObjectName = Annotated[str, Field(pattern=patterns.DNS_SUBDOMAIN, max_length=253)]
"""The name of a Secret or a claim in the job's own namespace."""
