"""Chat templates come from strangers: they render, they refuse, and they cannot reach or use up anything."""

from __future__ import annotations

import pytest

from sparkwright.core.chat import MOST_STEPS, ChatTemplate
from sparkwright.core.errors import ModelError, RequestError

HELLO = [{"role": "user", "content": "hello"}]


def render(source: str, messages: list[dict[str, str]] | None = None) -> str:
    return ChatTemplate.compile(source, "t.jinja").render(HELLO if messages is None else messages, {"bos_token": "<s>"})


def test_what_real_templates_use_works() -> None:
    source = """{%- set ns = namespace(found=false) -%}
{%- for m in messages -%}
    {%- if loop.first and m.role == 'user' -%}{%- set ns.found = true -%}{{ bos_token }}{%- endif -%}
    {%- if m.role == 'skipped' -%}{%- continue -%}{%- endif -%}
    {%- generation -%}{{ m.content | trim }}{%- endgeneration -%}
    {{- {'a': 'é'} | tojson -}}
{%- endfor -%}
{%- if add_generation_prompt and ns.found and tools is none -%}>{%- endif -%}
{{- '-' * 3 + 'x' -}}
{%- for i in range(3) -%}{{ i }}{%- endfor -%}"""
    assert render(source, [*HELLO, {"role": "skipped", "content": ""}]) == '<s>hello{"a": "é"}>---x012'


def test_the_date_is_available() -> None:
    assert len(render("{{ strftime_now('%Y') }}")) == 4


def test_a_refusal_of_the_template_is_a_request_error_in_its_words() -> None:
    with pytest.raises(RequestError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.os }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{% include '/etc/passwd' %}",
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% for a in range(10 ** 9) %}{% endfor %}",
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * [1] }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ '%999999999d' % 1 }}",
        "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{% for i in range(100000) %}{{ 'abcdefghij' * 100 }}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 1 / 0 }}",
        "{{ nothing.more }}",
        "{{ messages[9].content.x.y }}",
    ],
)
def test_reaching_out_and_growing_without_end_is_one_model_error(source: str) -> None:
    with pytest.raises(ModelError, match=r"t\.jinja: the chat template failed"):
        render(source)


def test_the_steps_are_counted_for_one_rendering_only() -> None:
    template = ChatTemplate.compile("{% for i in range(90000) %}{% endfor %}", "t.jinja")
    for _ in range(MOST_STEPS // 90000 + 2):
        template.render(HELLO, {})


@pytest.mark.parametrize("source", ["{% if %}", "{{ a b }}", "{% for x in %}", "{{" * 3])
def test_invalid_jinja_is_a_model_error_with_its_line(source: str) -> None:
    with pytest.raises(ModelError, match="line 1: not a valid chat template"):
        render(source)


def test_a_template_of_absurd_size_is_refused() -> None:
    with pytest.raises(ModelError, match="characters"):
        ChatTemplate.compile("a" * (1 << 21), "t.jinja")


@pytest.mark.parametrize("message", [{"role": "user"}, {"content": "x"}, {"role": "user", "content": None}])
def test_a_message_without_role_or_content_is_a_request_error(message: dict[str, str]) -> None:
    with pytest.raises(RequestError, match="message 0 has no"):
        render("x", [message])


def test_a_conversation_without_messages_is_a_request_error() -> None:
    with pytest.raises(RequestError, match="no messages"):
        render("x", [])
