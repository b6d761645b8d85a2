"""A model's chat template, run in Jinja's immutable sandbox, set up as transformers sets it up.

The template is code from strangers: it sees plain strings, lists and dictionaries and nothing else.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from prompting.messages import Message


class TemplateRefusedError(Exception):
    """The template will not, or cannot, write these messages; the text is its own."""


class ChatTemplate:
    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile the template; raise TemplateRefusedError where it is no valid Jinja."""
        self.source = source
        self._special_tokens = dict(special_tokens)
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            self.literal_text = _literal_text(environment.parse(source))
        except jinja2.TemplateError as error:
            raise TemplateRefusedError(str(error)) from error

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool, at: datetime | None = None
    ) -> str:
        """Write the messages as one text. `at` is the time the template may ask for: now, unless given."""
        moment = (at or datetime.now(UTC)).astimezone()
        try:
            return self._template.render(
                messages=[{"role": message.role, "content": message.text} for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                strftime_now=moment.strftime,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise TemplateRefusedError(str(error)) from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    return environment


def _literal_text(tree: nodes.Template) -> str:
    """All the text a template holds itself, its pieces kept apart by a character no token has."""
    pieces = {node.data for node in tree.find_all(nodes.TemplateData)}
    pieces |= {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    return "\0".join(sorted(pieces))


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 -- templates pass it as they like
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Jinja's own filter escapes HTML, which no model was trained on."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class _GenerationTag(Extension):
    """`{% generation %}` marks what a model learns from in training; here only its body matters."""

    tags = {"generation"}  # noqa: RUF012 -- Jinja's own type

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """`dict` for templates, without the attributes of the real one."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace` for templates, which may not write to Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that namespace(self=...) works, as in Jinja
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _refuse_internal(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_internal(name)
        super().__setitem__(name, value)


def _refuse_internal(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}: no leading underscore")
