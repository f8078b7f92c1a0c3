"""The model's chat template: messages to one prompt text, in a sandbox that behaves like Hugging Face's.

Owns the Jinja environment and what a template may call. Receives plain dictionaries, hands on text; does not guard or
encode it (prompt.py does). A template that refuses the messages is the caller's fault, a broken one a set-up fault.
"""

import json
from collections.abc import Mapping, Sequence
from typing import NoReturn

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from contracts.errors import InvalidRequest, SetupError


class _Refused(Exception):
    """The template called raise_exception."""


class ChatTemplate:
    """One compiled template; render() is a pure function of its arguments."""

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _render_json
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise SetupError(f"chat template, line {error.lineno}: {error.message}") from error
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    def render(self, messages: Sequence[Mapping[str, object]]) -> str:
        """The prompt up to and including the assistant's opening.

        Raises: InvalidRequest when the template refuses the messages or cannot render them.
        """
        try:
            return self._template.render(messages=messages, tools=None, add_generation_prompt=True, **self._tokens)
        except _Refused as error:
            raise InvalidRequest(
                f"the model's chat template refuses the messages: {error}", param="messages"
            ) from error
        except (TemplateError, TypeError) as error:
            raise InvalidRequest(
                f"the model's chat template cannot render the messages: {error}", param="messages"
            ) from error


def _refuse(message: object) -> NoReturn:
    raise _Refused(str(message))


def _render_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
