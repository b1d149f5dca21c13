"""Chat templates, rendered as transformers and vLLM render them, without importing either.

The environment follows `transformers.utils.chat_template_utils`: sandboxed, blocks trimmed, loop
controls, `tojson` without HTML escapes, `raise_exception`, `strftime_now`, `{% generation %}`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.data.conversation import Message
from finetune_trainer.data.faults import RowFault


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks replies for other trainers; here its body is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012 - the name and type that jinja2 asks for

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Refusal(Exception):  # noqa: N818 - what a template says no to, never seen outside
    """Raised by `raise_exception` inside of a template."""


def _refuse(message: str) -> NoReturn:
    raise _Refusal(message)


def tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as chat templates write it: other scripts as they are, no HTML escapes."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _environment(now: datetime, *, trusted: bool) -> jinja2.Environment:
    kind = jinja2.Environment if trusted else jinja2.sandbox.ImmutableSandboxedEnvironment
    environment = kind(
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = _refuse
    strftime: Callable[[str], str] = now.strftime
    environment.globals["strftime_now"] = strftime
    return environment


class ChatTemplate:
    """One chat template with the names that it refers to.

    Args:
        source: the Jinja text.
        variables: `bos_token`, `eos_token` and the tokenizer's other named tokens.
        now: what `strftime_now` tells; fixed, so that all processes render alike.
        trusted: the text is this package's own, so that the sandbox and its cost are not needed.

    Raises:
        RunError: InvalidConfiguration, the text is not a Jinja template.
    """

    def __init__(
        self, source: str, variables: Mapping[str, str], now: datetime, *, trusted: bool = False
    ) -> None:
        self.source = source
        self._variables = dict(variables)
        try:
            self._template = _environment(now, trusted=trusted).from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise RunError(
                ExitReason.INVALID_CONFIGURATION,
                f"the chat template is not valid Jinja: line {error.lineno}: {error.message}",
                "choose a named template in dataset.template",
            ) from None
        # Contexts made of plain dicts cost a third of what Template.render spends on chained ones.
        self._globals = dict(self._template.globals)
        self._template.globals = self._globals
        self.shows_tools = "tools" in source
        self.shows_calls = "tool_calls" in source

    def render(
        self,
        messages: Sequence[Message],
        tools: list[dict[str, object]] | None = None,
        *,
        reply: bool = False,
    ) -> str:
        """Put a conversation into one text; with `reply`, up to where the model has to answer.

        Raises:
            RowFault: the template refuses the conversation, or fails on it.
        """
        values: dict[str, Any] = {
            **self._globals,
            **self._variables,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": reply,
        }
        context = self._template.new_context(values, shared=True)
        try:
            return "".join(self._template.root_render_func(context))
        except _Refusal as error:
            raise RowFault(f"the chat template refuses the row: {error}") from None
        except jinja2.exceptions.SecurityError as error:
            raise RowFault(f"the chat template does what is not allowed: {error}") from None
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise RowFault(f"the chat template fails on the row: {error}") from None
