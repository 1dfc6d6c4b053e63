"""Jinja as Hugging Face runs chat templates, with bounds: a template is part of an untrusted file.

Rendering the same template with the same messages always spends the same budget, so what is
refused does not depend on the machine. Texts keep the origin of their characters (`TracedText`)
through everything that a template can do with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial, wraps
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
from samovar.text.budget import MAX_OUTPUT_CHARS, Budget, OverBudget, joined_size
from samovar.text.traced import TracedText, holds_outside, joined, plain, retraced

_STEPS_PER_CALL = 20
# Filters that give what they got, or parts of it; the others make new texts.
_HANDING_ON = frozenset(
    (
        *("attr", "batch", "d", "default", "dictsort", "first", "groupby", "items", "last", "list"),
        *("map", "max", "min", "random", "reject", "rejectattr", "reverse", "select"),
        *("selectattr", "slice", "sort", "sum", "unique"),
    )
)
_MAX_INDENT = 64
# A field of str.format that takes a part of its argument.
_PART_FIELD = re.compile(r"\{[^{}:!]*[.\[]")


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

    def render(self, variables: Mapping[str, object]) -> TracedText:
        """The text; what came from outside is what `variables` hold as TracedText.

        Raises TemplateError with the template's own words where it refuses.
        """
        self._environment.budget.start()
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(variables):
                size += len(part)
                if size > MAX_OUTPUT_CHARS:
                    raise OverBudget(f"its output is longer than {MAX_OUTPUT_CHARS} characters")
                parts.append(part)
        except _Refusal as refusal:
            raise TemplateError(f"The chat template refuses these messages: {refusal}") from None
        except OverBudget as excess:
            raise TemplateError(f"The chat template was stopped: {excess}.") from None
        except RecursionError:
            raise TemplateError("The chat template was stopped: it calls itself forever.") from None
        except Exception as error:
            # Whatever a template does wrong with these messages ends here: undefined names, wrong
            # types, forbidden attributes, bad arguments.
            raise TemplateError(f"The chat template fails on these messages: {error}") from None
        finally:
            self._environment.budget.start()
        return joined(parts)


class _Refusal(jinja2.TemplateError):
    """raise_exception() in a template."""


class _CountLoops(NodeTransformer):
    """Lets what can take long pass through the budget: loops, joins, cuts, comparisons, tuples."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_counted")  # type: ignore[arg-type]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "_concatenated")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        node.expr = _paid(node.expr)
        for operand in node.ops:
            operand.expr = _paid(operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _paid(node.node)
        return node

    def visit_List(self, node: nodes.List) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _paid(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _paid(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _paid(node) if node.ctx == "load" else node  # else no value, but names


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _paid(node: nodes.Expr) -> nodes.Expr:
    """`node`, its value paid for unless it is written in the template."""
    return node if isinstance(node, nodes.Const) else _filtered(node, "_paid")


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

    def __repr__(self) -> str:
        return "<Namespace>"  # it may hold itself, or a huge value


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
    concat = staticmethod(joined)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, loopcontrols],
            finalize=self._as_text,
        )
        self.budget = Budget()
        self.globals.update(
            raise_exception=_raise_exception,
            strftime_now=_strftime_now,
            namespace=_TemplateNamespace,
            dict=_TemplateDict(),
        )
        del self.globals["lipsum"]
        self.filters["tojson"] = _tojson
        for name, filter_ in self.filters.items():
            self.filters[name] = self._bounded_filter(name, filter_)
        for name, test in self.tests.items():
            self.tests[name] = self._paid_test(test)  # type: ignore[arg-type]
        self.filters["join"] = self._join
        self.filters["_counted"] = _counted
        self.filters["_concatenated"] = self._concatenated
        self.filters["_paid"] = self._paid

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        # The odd names are jinja2's: a template may pass arguments called self and context.
        __self.budget.spend(_STEPS_PER_CALL)
        method = getattr(__obj, "__wrapped__", __obj)  # jinja2 wraps str.format
        text = getattr(method, "__self__", None)
        for value in (text, *args, *kwargs.values()):
            __self.budget.spend_use(value)
        if isinstance(text, str):
            name = method.__name__
            __self.budget.spend_text(name, text, args, kwargs)
            if name == "join" and len(args) == 1 and not kwargs:
                if isinstance(args[0], str):
                    __self.budget.spend(len(args[0]))
                items = list(args[0])
                __self.budget.spend_size(joined_size(text, items))
                text.join(items)  # for its errors
                return joined(_interleaved(text, items))
        result = super().call(__context, __obj, *args, **kwargs)
        __self.budget.measure(result)
        if isinstance(result, str) and not isinstance(result, TracedText):
            if isinstance(text, bytes | bytearray) or (
                isinstance(text, str) and name.startswith("format") and _PART_FIELD.search(text)
            ):
                return TracedText(result) if holds_outside(text, args, kwargs) else result
            if isinstance(text, str):

                def again(text: str, *args: Any, **kwargs: Any) -> Any:
                    return __self.getattr(text, name)(*args, **kwargs)

                return retraced(result, again, (text, *args), kwargs)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            if isinstance(left, int) and isinstance(right, int):
                self.budget.check_bits(left.bit_length() * max(right, 0))
        elif operator == "*":
            if isinstance(left, int) and isinstance(right, int):
                self.budget.check_bits(left.bit_length() + right.bit_length())
            for value, count in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and isinstance(count, int):
                    self.budget.spend_size(len(value) * max(count, 0))
        elif operator == "%":
            if isinstance(left, str):
                self.budget.spend_text("format", left, (right,), {})
        elif isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            self.budget.spend_size(len(left) + len(right))
        result = super().call_binop(context, operator, left, right)
        self.budget.measure(result)
        if isinstance(result, str) and not isinstance(result, TracedText):
            return retraced(result, self.binop_table[operator], (left, right), {})
        return result

    def _as_text(self, value: Any) -> Any:
        """`value` as a template prints it: a text, or what is no text but holds none either."""
        if isinstance(value, str | int | float | jinja2.Undefined) or value is None:
            return value
        self.budget.spend_use(value)
        return TracedText(str(value))

    def _concatenated(self, items: list[Any]) -> TracedText:
        texts = [str(self._as_text(item)) for item in items]
        self.budget.spend_size(sum(map(len, texts)))
        return joined(texts)

    def _join(
        self, value: Iterable[Any], d: str = "", attribute: str | int | None = None
    ) -> TracedText:
        if attribute is not None:
            value = map(jinja2.filters.make_attrgetter(self, attribute), value)
        if isinstance(value, str):
            self.budget.spend(len(value))
        texts = [str(self._as_text(item)) for item in value]
        separator = str(self._as_text(d))
        self.budget.spend_size(joined_size(separator, texts))
        return joined(_interleaved(separator, texts))

    def _paid(self, value: Any) -> Any:
        self.budget.spend_use(value)
        return value

    def _paid_test(self, test: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(test)
        def paid(*args: Any) -> Any:
            for value in args:
                self.budget.spend_use(value)
            return test(*args)

        return paid

    def _bounded_filter(self, name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
        wants = getattr(getattr(filter_, "jinja_pass_arg", None), "name", "")

        # Taking the context also keeps jinja2 from running it while compiling.
        @pass_context
        def bounded(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
            self.budget.spend_filter(name, value, args, kwargs, by_character=name in _HANDING_ON)
            self.budget.spend_text(name, value if isinstance(value, str) else "", args, kwargs)
            first = {
                "context": (context,),
                "eval_context": (context.eval_ctx,),
                "environment": (self,),
            }.get(wants, ())
            if name in _HANDING_ON or (name == "trim" and isinstance(value, TracedText)):
                handed = filter_(*first, value, *args, **kwargs)
                self.budget.measure(handed)
                return handed
            result = filter_(
                *first,
                plain(value),
                *map(plain, args),
                **{key: plain(item) for key, item in kwargs.items()},
            )
            if not isinstance(result, str):
                self.budget.measure(result)
                return result
            return retraced(result, partial(filter_, *first), (value, *args), kwargs)

        return bounded


@pass_context
def _counted(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    budget: Budget = context.environment.budget  # type: ignore[attr-defined]
    for item in items:
        budget.spend()
        yield item


def _interleaved(separator: str, texts: Iterable[str]) -> Iterator[str]:
    for i, text in enumerate(texts):
        if i:
            yield separator
        yield text


def _strftime_now(form: str) -> str:
    text = datetime.now().strftime(form)
    return TracedText(text) if holds_outside(form) else text


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
        raise OverBudget(f"it indents by more than {_MAX_INDENT}")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
