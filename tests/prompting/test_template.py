from datetime import UTC, datetime

import pytest

from prompting.messages import Message
from prompting.template import ChatTemplate, TemplateRefusedError

USER = Message("user", "Hello <b>")


def render(source: str, **names: str) -> str:
    return ChatTemplate(source, names).render([USER], add_generation_prompt=True)


def test_blocks_leave_no_blank_lines() -> None:
    assert render("{% if true %}\n  {% set a = 1 %}\nx{{ a }}\n{% endif %}\n") == "x1\n"


def test_loops_can_break_and_continue() -> None:
    source = "{% for n in range(9) %}{% if n == 1 %}{% continue %}{% endif %}{% if n == 3 %}{% break %}{% endif %}{{ n }}{% endfor %}"
    assert render(source) == "02"


def test_json_is_not_escaped_for_html() -> None:
    assert render("{{ messages[0] | tojson }}") == '{"role": "user", "content": "Hello <b>"}'
    assert render("{{ {'ü': [1]} | tojson(indent=1) }}") == '{\n "ü": [\n  1\n ]\n}'
    assert render("{{ {'ü': 1} | tojson(ensure_ascii=true, separators=(',', ':')) }}") == '{"\\u00fc":1}'


def test_the_template_knows_named_tokens_and_what_is_not_given() -> None:
    source = "{{ bos_token }}{{ tools is none }}{{ documents is none }}{{ enable_thinking is defined }}"
    assert render(source, bos_token="<s>") == "<s>TrueTrueFalse"


def test_the_generation_tag_writes_its_body() -> None:
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}!") == "Hello <b>!"


def test_the_time_is_the_one_given() -> None:
    template = ChatTemplate("{{ strftime_now('%Y') }}", {})
    at = datetime(1999, 6, 1, tzinfo=UTC)
    assert template.render([USER], add_generation_prompt=False, at=at) == "1999"
    assert int(template.render([USER], add_generation_prompt=False)) > 2000


def test_a_template_can_refuse() -> None:
    with pytest.raises(TemplateRefusedError, match="no such role"):
        render("{{ raise_exception('no such role') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ namespace(__class__=1) }}",
        "{% set n = namespace() %}{% set n.__class__ = 1 %}",
        "{{ dict.__init__ }}",
        "{{ strftime_now.__self__ }}",
        "{% include 'x' %}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(source: str) -> None:
    with pytest.raises(TemplateRefusedError):
        ChatTemplate(source + "{{ none.x.y }}", {}).render([USER], add_generation_prompt=False)


def test_namespace_and_dict_work_as_templates_expect() -> None:
    assert render("{% set n = namespace(a=1, self=2) %}{% set n.a = n.a + n.self %}{{ n.a }}") == "3"
    assert render("{{ dict(a=1).a }}{{ dict.fromkeys(['b'], 2).b }}") == "12"


def test_literal_text_is_all_the_template_writes_itself() -> None:
    text = ChatTemplate(
        "<|a|>{{ '<|b|>' + messages[0].content }}{% if x == '<|c|>' %}{% endif %}", {}
    ).literal_text
    assert all(token in text for token in ("<|a|>", "<|b|>", "<|c|>"))
    assert "<|a|><|b|>" not in text
