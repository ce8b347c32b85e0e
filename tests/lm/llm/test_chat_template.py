"""Chat templates: transformers is the oracle; programs without end are one line."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
from tiny_llm import bpe_tokenizer

from cortext_lm.llm import render_template
from cortext_lm.llm.chat_template import render

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "audio"}, {"type": "text", "text": " Ünder <a> 'b'? "}]},
    {"role": "assistant", "content": "yes"},
]
# The constructs of published templates: namespaces, macros, loop controls, reversed slices, JSON.
TEMPLATES = {
    "ChatML": """{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\n' }}
    {%- if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}
        {%- if part.type == 'audio' %}<|AUDIO|>{% else %}{{ part['text'] | trim }}{% endif %}
    {%- endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    "namespace": """{% set ns = namespace(last=-1) %}{% for m in messages[::-1] %}
  {% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% break %}{% endif %}
{% endfor %}{{ bos_token }}{{ ns.last }}{{ eos_token }}""",
    "JSON": "{{ messages | tojson }}{{ messages[1] | tojson(indent=2) }}{{ tools is none }}",
    "macro": """{% macro say(m) -%}[{{ m.role | upper }}]{%- endmacro %}
{% for m in messages %}
    {% generation %}{{ say(m) }}{% endgeneration %}
{% endfor %}{{ documents is defined }}{{ enable_thinking }}""",
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return bpe_tokenizer()


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_gives_the_text_that_transformers_gives(tokenizer: Any, name: str) -> None:
    settings = {"add_generation_prompt": True, "enable_thinking": False}
    expected = tokenizer.apply_chat_template(
        CHAT, chat_template=TEMPLATES[name], tokenize=False, **settings
    )
    assert len(expected) > 5
    assert render(TEMPLATES[name], CHAT, tokenizer, **settings) == expected


DOUBLING = "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}"
ATTACKS = {
    "a loop in a loop": (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "takes more than 1 s",
    ),
    "a long text": ("{% for i in range(99999) %}aaaaaaaaaa{% endfor %}", "100,000 characters"),
    "a text that doubles": (DOUBLING + "{% endfor %}", "more than 512 MB"),
    "a product": ("{{ 'a' * 10**11 }}", "more than 512 MB"),
    "a range": ("{% for i in range(10**12) %}{% endfor %}", "[Rr]ange"),
    "a macro without end": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    "brackets": ("{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}", "recursion"),
    "a wide line": ("{{ 'a'.center(10**11) }}", "more than 512 MB"),
    "Python": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
    "another template": ("{% include '/etc/passwd' %}", "no loader"),
    "half of a tag": ("{% for", "end of template"),
    "two lines": ("{{ raise_exception('one\ntwo') }}", "one"),
    "half of a pair": ("{{ 'a' }}\ud800", "surrogate"),
    "a list": ([], "no text"),
    "no default": ({"tool_use": "a"}, "no text"),
    "a long template": ("a" * 200_001, "no text"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_template_without_bounds_is_one_line(
    tokenizer: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template, says = ATTACKS[name]
    shorter = Path(render_template.__file__).read_text().replace("MOST_CPU_S = 5", "MOST_CPU_S = 1")
    (tmp_path / "program.py").write_text(shorter)
    monkeypatch.setattr(render_template, "__file__", str(tmp_path / "program.py"))
    monkeypatch.setattr("cortext_lm.llm.chat_template.MOST_CPU_S", 1)
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(ValueError, match=says) as caught:
        render(template, CHAT, tokenizer)
    assert "\n" not in str(caught.value)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
