"""Conversations to tokens: the built-in templates, turn rules, and texts that look like tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tiny_gguf
from samovar.checkpoint import open_checkpoint
from samovar.checkpoint.base import TokenizerSource
from samovar.errors import CheckpointError, RequestError, SettingError, TemplateError
from samovar.text.template import ChatTemplate
from samovar.text.tokenizer import Tokenizer

MakeSource = Callable[..., TokenizerSource]

CONTROL = (
    *("<s>", "</s>", "<bos>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<start_of_turn>", "<end_of_turn>"),
)
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer(byte_level: MakeSource) -> Tokenizer:
    source = byte_level(
        ("h e", "l l", "Ċ Ċ"),
        control=CONTROL,
        user_defined=("<think>", "</think>", "<|mine|>"),
        bos_id=259,
        eos_id=260,
        pre="llama-bpe",
    )
    return Tokenizer.build(source)


@pytest.fixture(scope="module")
def chatml(tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate.from_jinja(CHATML, tokenizer)


def chat(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The ids as text, control tokens included."""
    return b"".join(
        tokenizer.token_text(i).encode() if tokenizer.is_control(i) else tokenizer.token_bytes(i)
        for i in ids
    ).decode()


TALK = chat(("system", "S"), ("user", "U"), ("assistant", "A"), ("user", "V"))
NAMED = {
    "llama3": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nV<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "zephyr": "<|system|>\nS</s>\n<|user|>\nU</s>\n<|assistant|>\nA</s>\n<|user|>\nV</s>\n"
    "<|assistant|>\n",
    "llama2": "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A </s><s>[INST] V [/INST]",
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
    "<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n",
    "gemma": "<bos><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
    "<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n",
    "qwen3.5": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
    "<|im_start|>assistant\n<think>\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n",
    "qwen3.5-nothink": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n",
}
NAMED["qwen"] = NAMED["smollm"] = NAMED["chatml"]


@pytest.mark.parametrize("name", ChatTemplate.names())
def test_named(tokenizer: Tokenizer, name: str) -> None:
    template = ChatTemplate.named(name, tokenizer)
    assert template.render(TALK, add_generation_prompt=True) == NAMED[name]
    assert text_of(tokenizer, template.encode(TALK)) == NAMED[name]
    ends = {"llama3": "<|eot_id|>", "zephyr": "</s>", "llama2": "</s>", "gemma": "<end_of_turn>"}
    assert tokenizer.control_ids[ends.get(name, "<|im_end|>")] in template.end_ids
    assert tokenizer.end_ids <= template.end_ids
    # Each beginning of a conversation keeps its tokens as the conversation goes on.
    for count in (2, 4):
        begun = template.encode(TALK[:count])
        assert template.encode([*TALK, *TALK[2:]])[: len(begun)] == begun


def test_named_default_system_texts(tokenizer: Tokenizer) -> None:
    user = chat(("user", "U"))
    head = (
        "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    )
    for name, default in (
        ("qwen", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."),
        ("smollm", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"),
    ):
        template = ChatTemplate.named(name, tokenizer)
        assert text_of(tokenizer, template.encode(user)) == head.format(default)
        assert text_of(tokenizer, template.encode(user, system="X")) == head.format("X")
        assert text_of(tokenizer, template.encode(user, system="")) == head.format("")
        given = template.encode(chat(("system", "S"), ("user", "U")), system="X")
        assert text_of(tokenizer, given) == head.format("S")


def test_named_start_by_tokenizer(byte_level: MakeSource) -> None:
    source = byte_level(control=CONTROL, bos_id=256, eos_id=257, add_bos=True)
    tokenizer = Tokenizer.build(source)
    for name in ("zephyr", "chatml"):
        template = ChatTemplate.named(name, tokenizer)
        assert template.render(TALK, add_generation_prompt=True) == "<s>" + NAMED[name]
    assert ChatTemplate.named("qwen", tokenizer).encode(TALK)[0] != 256


def test_named_system_at_the_end_and_unknown_roles(tokenizer: Tokenizer) -> None:
    alone = chat(("system", "S"))
    gemma = ChatTemplate.named("gemma", tokenizer)
    assert gemma.render(alone, add_generation_prompt=False) == (
        "<bos><start_of_turn>user\nS\n\n<end_of_turn>\n"
    )
    llama2 = ChatTemplate.named("llama2", tokenizer)
    assert llama2.render(alone, add_generation_prompt=False) == (
        "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\n [/INST]"
    )
    for name in ("gemma", "llama2", "zephyr"):
        with pytest.raises(TemplateError, match=f"{name} has no role tool"):
            ChatTemplate.named(name, tokenizer).encode(chat(("user", "U"), ("tool", "T")))


def test_names_and_files(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"no chat template 'nope'; there are: llama3, .*gemma"):
        ChatTemplate.named("nope", tokenizer)
    path = tmp_path / "mine.jinja"
    with pytest.raises(SettingError, match=r"neither one of llama3, .* nor a file"):
        ChatTemplate.from_file(path, tokenizer)
    path.write_bytes(b"\xff")
    with pytest.raises(SettingError, match="not UTF-8"):
        ChatTemplate.from_file(path, tokenizer)
    path.write_text(CHATML)
    template = ChatTemplate.from_file(path, tokenizer)
    assert template.encode(TALK) == ChatTemplate.named("chatml", tokenizer).encode(TALK)
    path.write_text("{% for m in messages %}")
    with pytest.raises(TemplateError, match="not valid: line 1"):
        ChatTemplate.from_file(path, tokenizer)


def test_last_assistant_message_is_continued(tokenizer: Tokenizer, chatml: ChatTemplate) -> None:
    talk = chat(("user", "U"), ("assistant", "One, two,"))
    head = "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    assert text_of(tokenizer, chatml.encode(talk)) == head + "One, two,"
    closed = text_of(tokenizer, chatml.encode(talk, continue_final=False))
    assert closed == head + "One, two,<|im_end|>\n<|im_start|>assistant\n"
    kept = chat(("user", "U"), ("assistant", " two \n"))
    assert text_of(tokenizer, chatml.encode(kept)) == head + " two \n"
    trims = ChatTemplate.from_jinja(CHATML.replace("m.content", "m.content|trim"), tokenizer)
    assert text_of(tokenizer, trims.encode(kept)) == head + "two"
    assert text_of(tokenizer, chatml.encode(chat(("user", "U"), ("assistant", "")))) == head
    llama2 = ChatTemplate.named("llama2", tokenizer)
    assert text_of(tokenizer, llama2.encode(talk)) == "<s>[INST] U [/INST] One, two,"
    drops = ChatTemplate.from_jinja("{{ messages[0].content }}", tokenizer)
    with pytest.raises(TemplateError, match="cannot be continued"):
        drops.encode(talk)


def test_developer_and_system(tokenizer: Tokenizer, chatml: ChatTemplate) -> None:
    talk = chat(("developer", "D"), ("user", "U"))
    assert text_of(tokenizer, chatml.encode(talk, system="X")).startswith(
        "<|im_start|>system\nD<|im_end|>\n<|im_start|>user"
    )
    knows = ChatTemplate.from_jinja(CHATML + "{# developer #}", tokenizer)
    assert text_of(tokenizer, knows.encode(talk)).startswith("<|im_start|>developer\nD")
    refuses = ChatTemplate.from_jinja(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        + CHATML,
        tokenizer,
    )
    ignores = ChatTemplate.from_jinja(
        CHATML.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}"),
        tokenizer,
    )
    for template in (refuses, ignores):
        assert text_of(tokenizer, template.encode(talk)).startswith("<|im_start|>user\nD\n\nU<")
        with pytest.raises(TemplateError, match="no system role"):
            template.encode(chat(("system", "S")))
    with pytest.raises(TemplateError, match="no system"):
        refuses.render(chat(("system", "S")), add_generation_prompt=True)


special_texts = st.lists(
    st.sampled_from(
        [
            *("<|im_end|>", "<|im_start|>", "</s>", "<|im_", "end|>", "<", "|>", "\n"),
            *("\ufdd0", "\ufdd1", "\U0010ffff", "hello", "<think>", "é"),
        ]
    ),
    max_size=8,
).map("".join)


@given(system=special_texts, user=special_texts, reply=special_texts, tool=special_texts)
def test_texts_never_become_control_tokens(
    tokenizer: Tokenizer, chatml: ChatTemplate, system: str, user: str, reply: str, tool: str
) -> None:
    turns = (("system", system), ("user", user), ("assistant", reply), ("tool", tool))
    ids = chatml.encode(chat(*turns))
    controls = [tokenizer.token_text(i) for i in ids if tokenizer.is_control(i)]
    assert controls == ["<|im_start|>", "<|im_end|>"] * 4 + ["<|im_start|>"]
    # And the texts are all there, as text.
    assert text_of(tokenizer, ids) == chatml.render(chat(*turns), add_generation_prompt=True)


@given(user=st.text(max_size=20), reply=st.text(max_size=20))
def test_other_texts_give_the_tokens_of_the_rendered_text(
    tokenizer: Tokenizer, chatml: ChatTemplate, user: str, reply: str
) -> None:
    assume(not any(text in user or text in reply for text in CONTROL))
    talk = chat(("user", user), ("assistant", reply), ("user", "<think>"))
    text = chatml.render(talk, add_generation_prompt=True)
    assert chatml.encode(talk) == tokenizer.encode(text, special=True, bos=False)


# Each writes the same control tokens whatever the contents are.
JOINS_AND_EDITS = [
    "{{ a }}{{ b }}{{ c }}<|im_end|>",
    "{{ a ~ b ~ c }}<|im_end|>",
    "{{ a + b + c + '<|im_end|>' }}",
    "{{ '%s%s%s<|im_end|>' % (a, b, c) }}",
    "{{ '{}{}{}<|im_end|>'.format(a, b, c) }}",
    "{{ '{0[0]}{0[1]}{1}{2}'.format(a, b, c) }}<|im_end|>",
    "{{ '%s%s%s<|im_end|>'|format(a, b, c) }}",
    "{{ [a, b, c, '<|im_end|>']|join }}",
    "{{ ''.join([a, b, c, '<|im_end|>']) }}",
    "{{ a.join([b, c]) }}<|im_end|>",
    "{{ [a, b]|join(c) }}<|im_end|>",
    "{% for x in a %}{{ x }}{% endfor %}{{ b }}{{ c }}<|im_end|>",
    "{% for x in a|list + b|list %}{{ x }}{% endfor %}{{ c }}<|im_end|>",
    "{{ a[:1] }}{{ a[1:] }}{{ b|first }}{{ b|last }}{{ c[0] }}<|im_end|>",
    "{{ a|reverse }}{{ b[::-1] }}{{ c|list|reverse|join }}<|im_end|>",
    "{{ a.replace('<think>', '') }}{{ b|replace('x', '') }}{{ c }}<|im_end|>",
    "{{ (a + b + c).replace('<think>', '').replace('x', '') }}<|im_end|>",
    "{{ a.replace('(', '<') }}{{ b|replace('(', '<') }}{{ c.replace(')', '>') }}<|im_end|>",
    "{{ a|lower }}{{ b.lower() }}{{ c|upper }}{{ (a ~ b)|lower }}{{ c|title }}<|im_end|>",
    "{{ a.split('x')|join }}{{ ''.join(b.split()) }}{{ c.splitlines()|join }}<|im_end|>",
    "{{ a.partition('x')[0] }}{{ a.rpartition('x')[2] }}{{ b.rsplit('x', 1)[0] }}{{ c }}<|im_end|>",
    "{{ a|trim }}{{ b.strip('x') }}{{ c.lstrip('x<').rstrip('x') }}{{ b.removeprefix('x') }}",
    "{{ a|tojson }}{{ [b, {'k': c}]|tojson }}{{ {a: 1}|tojson(indent=1) }}<|im_end|>",
    "{{ [a, b] }}{{ {'k': c} }}{{ (a, b) }}<|im_end|>",
    "{{ [a, b]|string }}{{ '%s' % [c] }}{{ [a] ~ b }}{{ namespace(x=c) }}<|im_end|>",
    "{{ a|safe }}{{ b|e }}{{ c|safe|trim }}{{ ('<|im_' ~ b)|safe }}<|im_end|>",
    "{{ '<|im_'|safe + a }}{{ a|safe + '|>' }}{{ a|safe + (b|safe) }}<|im_end|>",
    "<|{{ a }}|>{{ '<|' + b + '|>' }}<{{ c }}><|im_end|>",
    "{{ a * 2 }}{{ 2 * b }}{{ '%s' * 2 % (b, c) }}<|im_end|>",
    "{% set t %}{{ a }}{{ b }}{% endset %}{{ t|trim }}{{ c }}<|im_end|>",
    "{% macro m(x) %}{{ x }}{{ b }}{% endmacro %}{{ m(a)|trim }}{{ c }}<|im_end|>",
    "{% filter lower %}{{ a }}{{ b }}{% endfilter %}{{ c }}<|im_end|>",
    "{% set n = namespace(t='') %}{% for x in [a, b, c] %}{% set n.t = n.t + x %}{% endfor %}"
    "{{ n.t[:40] }}<|im_end|>",
    "{{ a|center(40) }}{{ b.ljust(20) }}{{ c|indent(2) }}{{ a|wordwrap(4) }}{{ b|truncate(9) }}",
    "{{ a.encode().decode() }}{{ b.translate({120: c}) }}{{ a.expandtabs() }}<|im_end|>",
    "{{ strftime_now(a) }}{{ [a, b]|map('lower')|join }}{{ [[a, b]]|map('join')|join }}<|im_end|>",
    "{{ messages|map(attribute='content')|join }}{{ messages|join('', 'content') }}<|im_end|>",
    "{{ a|default('x') }}{{ nope|default(b) }}{{ c|pprint }}{{ {'a': a}|xmlattr }}<|im_end|>",
    "{{ a if a else b }}{{ a or b }}{{ [a, b, c]|sort|join }}{{ {'k': c}.items()|list }}<|im_end|>",
    "{{ {'k': a}.items() }}{{ {'k': a}.values()|string }}{{ [a]|batch(1)|list }}<|im_end|>",
    "{{ a|indent(2, true) }}{{ 'x\\ny'|indent(b, true) }}{{ (a ~ b)|wordwrap(3, true, c) }}",
    "{{ a|urlize }}{{ b|striptags }}{{ c|urlencode }}{{ a|forceescape }}<|im_end|>",
    "{% block t %}{{ messages[0].content }}{% endblock %}{{ self.t() }}<|im_end|>",
]
pieces = st.sampled_from(
    [
        *("<", "|", ">", "<|", "|>", "im_", "<|im_", "end", "end|>", "start|>", "im_end", "x"),
        *("<think>", "<|im_<think>end|>", "<|im_xend|>", "(", "(|im_end|)", "<|IM_END|>", "s"),
        *("<|im_end|>", "</s>", ">|dne_mi|<", " ", "\n", "s>", "/s>", "<s", "\ufdd0", "\ufdd1"),
        *("<|im_&lt;end|>", "{0}", "%s", "\t", "é"),
    ]
)
hostile = st.lists(pieces, min_size=1, max_size=5).map("".join)


@pytest.fixture(scope="module", params=JOINS_AND_EDITS)
def joining(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> ChatTemplate:
    names = "".join(f"{{% set {name} = messages[{i}].content %}}" for i, name in enumerate("abc"))
    return ChatTemplate.from_jinja(names + request.param, tokenizer)


@settings(max_examples=30)
@given(contents=st.tuples(hostile, hostile, hostile))
def test_no_way_of_joining_or_editing_makes_a_control_token(
    tokenizer: Tokenizer, joining: ChatTemplate, contents: tuple[str, str, str]
) -> None:
    talk = chat(*(("user", content) for content in contents))
    try:
        ids = joining.encode(talk)
    except TemplateError as error:
        assume("fails on these" not in str(error))
        raise
    assert [tokenizer.token_text(i) for i in ids if tokenizer.is_control(i)] == (
        ["<|im_end|>"] * joining.source.count("<|im_end|>")
    )
    # The template has seen the contents as they are.
    if "safe" not in joining.source:
        assert text_of(tokenizer, ids) == joining.render(talk, add_generation_prompt=True)


def test_tools_and_kwargs_are_guarded_too(tokenizer: Tokenizer) -> None:
    template = ChatTemplate.from_jinja("{{ tools|tojson }}{{ extra }}<|im_end|>", tokenizer)
    tools = [{"name": "<|im_end|>", "parameters": {"</s>": ["<|im_start|>"]}}]
    ids = template.encode(chat(("user", "U")), tools=tools, kwargs={"extra": "<s>"})
    assert [i for i in ids if tokenizer.is_control(i)] == [tokenizer.control_ids["<|im_end|>"]]
    assert tokenizer.decode(ids) == (
        '[{"name": "<|im_end|>", "parameters": {"</s>": ["<|im_start|>"]}}]<s>'
    )
    plain = template.encode(chat(("user", "U")), kwargs={"context": 1, "extra": 2})
    assert tokenizer.decode(plain) == "null2"
    for name in ("messages", "tools", "documents", "add_generation_prompt", "self"):
        with pytest.raises(RequestError, match=f"'{name}'") as error:
            template.encode(chat(("user", "U")), kwargs={name: 1})
        assert error.value.param == f"chat_template_kwargs.{name}"
        with pytest.raises(RequestError, match=f"'{name}'"):
            template.render(chat(("user", "U")), add_generation_prompt=True, kwargs={name: 1})


def test_turn_markers_of_the_users_own_making(tokenizer: Tokenizer) -> None:
    """User-defined tokens match in content, unless the template builds its turns with them."""
    mine = ChatTemplate.from_jinja("<|mine|>{{ messages[0].content }}", tokenizer)
    ids = mine.encode(chat(("user", "<|mine|><think>")))
    assert ids.count(tokenizer.user_defined_ids["<|mine|>"]) == 1
    assert ids.count(tokenizer.user_defined_ids["<think>"]) == 1
    other = ChatTemplate.from_jinja("{{ messages[0].content }}", tokenizer)
    assert other.encode(chat(("user", "<|mine|>"))) == [tokenizer.user_defined_ids["<|mine|>"]]


def test_the_models_own_template(tokenizer: Tokenizer, tmp_path: Path) -> None:
    def own(source: str | None) -> ChatTemplate | None:
        writer = tiny_gguf.llama(tokenizer__chat_template=source)
        return ChatTemplate.of_checkpoint(
            open_checkpoint(writer.write(tmp_path / "m.gguf")), tokenizer
        )

    assert own(None) is None
    template = own(CHATML)
    assert template is not None
    assert template.name == "model"
    for bad, message in (
        ("{% if %}", "not valid: line 1"),
        ("{{ " + "(" * 5000, "deeply nested|not valid"),
        ("x" * (1 << 20) + "x", "larger than 1048576 bytes"),
    ):
        with pytest.raises(CheckpointError, match=message) as error:
            own(bad)
        assert f"{tmp_path / 'm.gguf'}: tokenizer.chat_template: " in str(error.value)
        assert "--chat-template NAME" in str(error.value)
        with pytest.raises(TemplateError, match=message):
            ChatTemplate.from_jinja(bad, tokenizer)


def test_refusals(tokenizer: Tokenizer, chatml: ChatTemplate) -> None:
    with pytest.raises(TemplateError, match="no messages"):
        chatml.encode([])
    with pytest.raises(TemplateError, match="cannot render tools") as error:
        chatml.encode(chat(("user", "U")), tools=[{"name": "f"}])
    assert error.value.param == "messages"
    alternates = ChatTemplate.from_jinja(
        "{{ raise_exception('Roles must alternate.') }}", tokenizer
    )
    with pytest.raises(TemplateError, match=r"refuses these messages: Roles must alternate\."):
        alternates.encode(chat(("user", "U")))
    every = "".join(chr(p << 16 | e) for p in range(17) for e in (0xFFFE, 0xFFFF))
    every += "".join(map(chr, range(0xFDD0, 0xFDF0)))
    chatml.encode(chat(("user", every)))  # nothing there that a mark must break
    for talk in (chat(("user", every + "<s>")), chat(("user", every), ("assistant", "A"))):
        with pytest.raises(TemplateError, match="noncharacters"):
            chatml.encode(talk)


def test_null_fields_and_reasoning(tokenizer: Tokenizer) -> None:
    template = ChatTemplate.from_jinja(
        "{% for m in messages %}{{ m.name is defined }}{{ m.reasoning_content }}{% endfor %}",
        tokenizer,
    )
    messages = [{"role": "user", "content": "U", "name": None, "reasoning": "R"}]
    assert template.render(messages, add_generation_prompt=True) == "FalseR"
