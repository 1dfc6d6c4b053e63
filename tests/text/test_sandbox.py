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
