"""Chat templates are run as Hugging Face runs them, and a hostile one is stopped."""

from __future__ import annotations

import pytest

from samovar.errors import TemplateError
from samovar.text.sandbox import CompiledTemplate

MESSAGES = [{"role": "user", "content": " é <b> "}, {"role": "assistant", "content": "A"}]


def render(source: str) -> str:
    variables = {"messages": MESSAGES, "tools": None, "x": "x" * 9_999_999}
    return CompiledTemplate(source).render(variables)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for m in messages %}\n {% if loop.last %}\n x\n {% endif %}\n{% endfor %}\n", " x\n"),
        ("{{ messages[0]|tojson }}", '{"role": "user", "content": " é <b> "}'),
        ("{{ {'b': 1, 'a': []}|tojson(sort_keys=true, indent=1) }}", '{\n "a": [],\n "b": 1\n}'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% set n = namespace(x=1) %}{% for m in messages %}{% set n.x = n.x + 1 %}{% endfor %}"
         "{{ n.x }}", "3"),
        ("{% generation %}{{ messages[1].content }}{% endgeneration %}", "A"),
        ("{{ 'a' ~ 1 ~ none ~ true }}{{ 'ab' * 2 }}{{ 7 % 4 }}{{ 2 ** 3 }}", "a1NoneTrueabab38"),
        ("{{ messages|map(attribute='role')|join('+') }}", "user+assistant"),
        ("{{ '%s-%d' % ('a', 3) }}{{ '{}'.format(1700000000) }}", "a-31700000000"),
        ("{% for m in messages %}{{ loop.length }}{{ loop.nextitem is defined }}{% endfor %}",
         "2True2False"),
        ("{{ dict(a=1).a }}{{ tools is none }}{{ nope is defined }}{{ nope }}", "1TrueFalse"),
        ("{{ 'of 123456: %s%%' % 'x' }}{{ 'of 123456: {}'.format('x') }}",
         "of 123456: x%of 123456: x"),
        ("{{ strftime_now('%Y')|length }}", "4"),
    ],
)  # fmt: skip
def test_as_hugging_face(source: str, text: str) -> None:
    assert render(source) == text


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set x = range(9999)|list %}{% for a in x %}{% for b in x %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) if n }}{{ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}"
        "{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}"
        "{% endfor %}",
        "{% set x = 'x' * 9999999 %}{{ x }}{{ x }}{{ x }}{{ x }}",
        "{{ 'a' * 10000000000 }}",
        "{{ [1] * 10000000000 }}",
        "{{ 9 ** 99999 }}",
        "{{ 'x'|center(10000000000) }}",
        "{{ 'x'.ljust(10000000000) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' % (9999999999, 1) }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 9999999999) }}",
        "{{ (['x' * 99999] * 99999)|join }}",
        "{{ ','.join(['x' * 99999] * 99999) }}",
        "{{ ('x' * 99999).replace('x', 'y' * 99999) }}",
        "{{ ('x' * 99999)|replace('x', 'y' * 99999) }}",
        "{{ 'a'|indent(9999999999, true) }}",
        "{{ '%.9999999999f' % 1.5 }}",
        "{{ '%(a)99999d'|format(a=1) }}",
        "{{ [1]|tojson(indent=9999999999) }}",
        "{{ '%s%s%s%s' % (x, x, x, x) }}",
        "{{ range(10000000)|list }}",
    ],
)
def test_hostile_templates_are_stopped(source: str) -> None:
    with pytest.raises(TemplateError, match=r"stopped|Range too big"):
        render(source)


DOUBLING = (
    "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(80) %}"
    "{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% endfor %}"
)


@pytest.mark.parametrize(
    "source",
    [
        DOUBLING + "{{ n.x }}",
        DOUBLING + "{{ n.x|upper }}",
        DOUBLING + "{{ n.x == n.y }}",
        "{% set n = namespace(x=(1,)) %}{% for i in range(80) %}{% set n.x = (n.x, n.x) %}"
        "{% endfor %}{{ {n.x: 1} }}",
        "{% set n = namespace(x=1) %}{% for i in range(80) %}{% set n.x = dict(a=n.x, b=n.x) %}"
        "{% endfor %}{{ n.x is eq(n.x) }}",
        "{% set n = namespace(x=[1, 2]) %}{% for i in range(80) %}"
        "{% set n.x = (n.x * 2)|batch(2)|list %}{% endfor %}{{ n.x|tojson }}",
        "{% set n = namespace(x=[1]) %}{% for i in range(9999) %}{% set n.x = [n.x] %}{% endfor %}",
        "{% set x = range(99999)|list %}{% for a in x %}{% set y = x|sort %}{% endfor %}",
        "{% set x = range(99999)|list %}{% for a in x %}{% set y = x + x %}{% endfor %}",
        "{% for a in range(99999) %}{% set y = range(99999)|list %}{% endfor %}",
        "{% for a in range(99999) %}{% set y = x is upper %}{% endfor %}",
        "{% for a in range(99999) %}{% set y = x|urlize %}{% endfor %}",
        "{% for a in range(99999) %}{% set y = x|list %}{% endfor %}",
        "{{ ('a ' * 4999999)|wordwrap(1) }}",
        "{{ ('x' * 99999).translate({120: 'y' * 99999}) }}",
        "{{ x.join(range(9)|map('string')) }}",
        "{{ ('{0}' * 9999).format([x, x]) }}",
        "{{ ('%s' * 9999) % (([x, x],) * 9999) }}",
        "{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set n.l = n.l + [x|list] %}"
        "{% endfor %}",
    ],
)
def test_values_that_grow_and_loops_over_huge_ones_are_stopped(source: str) -> None:
    with pytest.raises(TemplateError, match="stopped"):
        render(source)


def test_a_long_conversation_is_within_the_budget() -> None:
    source = (
        "{% set n = namespace(m=[]) %}{% for m in messages %}{% set n.m = n.m + [m] %}"
        "{% if messages|length > 1 and m != messages[-1] %}{{ m.content|trim|replace('a', 'b') }}"
        "{{ (messages|selectattr('role', 'eq', 'user')|first).content[:1] }}{% endif %}"
        "{% endfor %}{{ n.m|length }}"
    )
    messages = [{"role": "user", "content": "word " * 200}] * 500
    messages = [{**message, "n": i} for i, message in enumerate(messages)]
    assert str(CompiledTemplate(source).render({"messages": messages})).endswith("500")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ namespace(_x=1) }}", "'_x'"),
        ("{{ messages[0].nope.deep }}", "nope"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ raise_exception('Only one image.') }}", "refuses these messages: Only one image."),
    ],
)
def test_faults_are_told(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        render(source)


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% nope %}", "{{ '" + "a" * 9 + " }}"])
def test_invalid_templates(source: str) -> None:
    with pytest.raises(TemplateError, match="not valid: line 1"):
        CompiledTemplate(source)


def test_deep_nesting() -> None:
    with pytest.raises(TemplateError):
        CompiledTemplate("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}")
