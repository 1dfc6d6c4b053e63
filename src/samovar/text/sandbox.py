"""Jinja as Hugging Face runs chat templates, with bounds: a template is part of an untrusted file.

Rendering the same template with the same messages always spends the same budget, so what is
refused does not depend on the machine.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.filters
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context
from jinja2.visitor import NodeTransformer

from samovar.errors import TemplateError

MAX_OUTPUT_CHARS = 32 << 20
# A step is one turn of a loop; a conversation of a thousand messages takes some ten thousand.
_MAX_STEPS = 1_000_000
_STEPS_PER_CALL = 20
_MAX_INTEGER_BITS = 4096
_MAX_INDENT = 64
# A width or precision of five digits, or one that is an argument.
_WIDE_FORMAT = re.compile(r"%(?:\([^)]*\))?[-+ #0]*\d*\.?(?:\d{5}|\*)|\{[^{}]*(?::[^{}]*\d{5}|\{)")


class CompiledTemplate:
    """A chat template ready to render; any number of threads may use it.

    Raises TemplateError if the source is no valid template.
    """

    def __init__(self, source: str) -> None:
        self._environment = _BoundedEnvironment()
        try:
            tree = _CountLoops().visit(self._environment.parse(source))
            self._template = self._environment.from_string(tree)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"The chat template is not valid: line {error.lineno}: {error.message}", param=None
            ) from None
        except (RecursionError, OverflowError, SyntaxError, MemoryError):
            raise TemplateError("The chat template is too deeply nested.", param=None) from None

    def render(self, variables: Mapping[str, object]) -> str:
        """The text.  Raises TemplateError with the template's own words where it refuses."""
        self._environment.budget.steps = _MAX_STEPS
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(variables):
                size += len(part)
                if size > MAX_OUTPUT_CHARS:
                    raise _OverBudget(f"its output is longer than {MAX_OUTPUT_CHARS} characters")
                parts.append(part)
        except _Refusal as refusal:
            raise TemplateError(f"The chat template refuses these messages: {refusal}") from None
        except _OverBudget as excess:
            raise TemplateError(f"The chat template was stopped: {excess}.") from None
        except RecursionError:
            raise TemplateError("The chat template was stopped: it calls itself forever.") from None
        except Exception as error:
            # Whatever a template does wrong with these messages ends here: undefined names, wrong
            # types, forbidden attributes, bad arguments.
            raise TemplateError(f"The chat template fails on these messages: {error}") from None
        return "".join(parts)


class _Refusal(jinja2.TemplateError):
    """raise_exception() in a template."""


class _OverBudget(Exception):
    """The template did more than rendering a conversation can need."""


class _Budget(threading.local):
    """Steps that the rendering on this thread may still take."""

    steps = _MAX_STEPS

    def spend(self, steps: int = 1) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise _OverBudget(f"it takes more than {_MAX_STEPS} steps")

    def spend_size(self, size: int) -> None:
        if size > MAX_OUTPUT_CHARS:
            raise _OverBudget(f"it makes a value of more than {MAX_OUTPUT_CHARS} characters")
        self.spend(size >> 10)


class _CountLoops(NodeTransformer):
    """Lets each turn of a loop and each joined text pass through the budget."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "_counted", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        items = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(items, "_concatenated", [], [], None, None, lineno=node.lineno)


class _GenerationTag(Extension):
    """`{% generation %} ... {% endgeneration %}`: marks a reply for training; text as it is."""

    tags = {"generation"}  # noqa: RUF012 - the type that jinja2 declares

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _TemplateNamespace(Namespace):
    """namespace(); like Hugging Face's it takes no names that start with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # A template may well have a variable called self.
        self, given = args[0], dict(*args[1:], **kwargs)
        for name in given:
            _refuse_private(name)
        Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        Namespace.__setitem__(self, name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot have an attribute {name!r}")


class _TemplateDict:
    """dict() and dict.fromkeys(), and nothing else of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Hugging Face's environment: same syntax, filters and globals; with a budget."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        self.budget = _Budget()
        self.globals.update(
            raise_exception=_raise_exception,
            strftime_now=lambda form: datetime.now().strftime(form),
            namespace=_TemplateNamespace,
            dict=_TemplateDict(),
        )
        del self.globals["lipsum"]
        self.filters["tojson"] = _tojson
        for name in ("center", "indent", "join", "replace", "format", "wordwrap", "batch", "slice"):
            self.filters[name] = self._bounded_filter(name, self.filters[name])
        self.filters["_counted"] = _counted
        self.filters["_concatenated"] = _concatenated

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        # The odd names are jinja2's: a template may pass arguments called self and context.
        __self.budget.spend(_STEPS_PER_CALL)
        method = getattr(__obj, "__wrapped__", __obj)  # jinja2 wraps str.format
        text = getattr(method, "__self__", None)
        if isinstance(text, str):
            __self._check_text(method.__name__, text, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            if isinstance(left, int) and isinstance(right, int):
                self._check_bits(left.bit_length() * max(right, 0))
        elif operator == "*":
            if isinstance(left, int) and isinstance(right, int):
                self._check_bits(left.bit_length() + right.bit_length())
            for value, count in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and isinstance(count, int):
                    self.budget.spend_size(len(value) * max(count, 0))
        elif operator == "%":
            if isinstance(left, str):
                self._check_text("format", left, (right,), {})
        elif isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            self.budget.spend_size(len(left) + len(right))
        return super().call_binop(context, operator, left, right)

    def _check_bits(self, bits: int) -> None:
        if bits > _MAX_INTEGER_BITS:
            raise _OverBudget("it makes a huge number")

    def _check_text(
        self, method: str, text: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Refuses a text operation whose result would be huge, before it is made."""
        numbers = [abs(a) for a in (*args, *kwargs.values()) if isinstance(a, int)]
        width = max(numbers, default=0)
        if method in ("center", "ljust", "rjust", "zfill", "batch", "slice"):
            self.budget.spend_size(max(width, len(text)))
        elif method in ("expandtabs", "indent"):
            self.budget.spend_size(len(text) + width * (1 + text.count("\n") + text.count("\t")))
        elif method in ("replace", "wordwrap"):
            longest = max(
                (len(a) for a in (*args, *kwargs.values()) if isinstance(a, str)), default=1
            )
            found = text.count(args[0]) if args and isinstance(args[0], str) else len(text)
            self.budget.spend_size(len(text) + found * longest)
        elif method in ("format", "format_map"):
            if _WIDE_FORMAT.search(text):
                raise _OverBudget("it formats with a huge or computed width")
            values = [*args, *(v for a in args if isinstance(a, tuple) for v in a)]
            sizes = (len(v) for v in (*values, *kwargs.values()) if isinstance(v, str))
            fields = text.count("{") + text.count("%")
            self.budget.spend_size(len(text) + fields * max(sizes, default=0))
        elif method == "join" and args and isinstance(args[0], list | tuple):
            self.budget.spend_size(_joined_size(text, args[0]))

    def _bounded_filter(self, name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
        wants = getattr(getattr(filter_, "jinja_pass_arg", None), "name", "")

        # Taking the context also keeps jinja2 from running it while compiling.
        @pass_context
        def bounded(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
            if name == "join":
                value = list(value)
                separator = args[0] if args else kwargs.get("d", "")
                if "attribute" not in kwargs and len(args) < 2:
                    self.budget.spend_size(_joined_size(str(separator), value))
            else:
                self._check_text(name, value if isinstance(value, str) else "", args, kwargs)
            first = {"eval_context": (context.eval_ctx,), "environment": (self,)}.get(wants, ())
            return filter_(*first, value, *args, **kwargs)

        return bounded


@pass_context
def _counted(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    budget: _Budget = context.environment.budget  # type: ignore[attr-defined]
    for item in items:
        budget.spend()
        yield item


@pass_context
def _concatenated(context: Context, items: list[Any]) -> str:
    texts = [str(item) for item in items]
    context.environment.budget.spend_size(sum(map(len, texts)))  # type: ignore[attr-defined]
    return "".join(texts)


def _joined_size(separator: str, items: Iterable[Any]) -> int:
    sizes = [len(item) if isinstance(item, str) else 8 for item in items]
    return sum(sizes) + len(separator) * len(sizes)


def _raise_exception(message: object) -> None:
    raise _Refusal(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Hugging Face's tojson: without HTML escapes, with json.dumps' own options."""
    if isinstance(indent, int) and indent > _MAX_INDENT:
        raise _OverBudget(f"it indents by more than {_MAX_INDENT}")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
