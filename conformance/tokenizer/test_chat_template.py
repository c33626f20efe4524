"""Chat templates: results of the models' own, and containment of hostile or broken ones."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.chat import ChatError, ChatTemplate

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
LLAMA2 = """{% if messages[0]['role'] == 'system' %}
    {% set system = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}
    {% set messages = messages[1:] %}
{% else %}
    {% set system = '' %}
{% endif %}
{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate user/assistant') }}
    {% endif %}
    {% if message['role'] == 'user' %}
{{ bos_token + '[INST] ' + (system if loop.first else '') + message['content'] + ' [/INST]' }}
    {%- else %}
{{ ' ' + message['content'] + ' ' + eos_token }}
    {%- endif %}
{% endfor %}"""

USER = {"role": "user", "content": "Hi"}
TALK = [{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": " Yes "}]


def render(source: str, messages: list[dict[str, str]] | None = None) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(messages or [USER])


def test_chatml():
    """ChatML renders each message between its marks and opens the assistant's turn on request."""
    chat = ChatTemplate(CHATML, "", "<|im_end|>")
    prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert chat.render(TALK[:2], add_generation_prompt=False) == prompt
    assert chat.render(TALK[:2]) == prompt + "<|im_start|>assistant\n"
    assert not chat.writes_bos(prompt)


def test_llama3():
    """A Llama 3 template renders header, trimmed content and end of turn, with one BOS."""
    chat = ChatTemplate(LLAMA3, "<|begin_of_text|>", "<|eot_id|>")
    prompt = chat.render(TALK, add_generation_prompt=False)
    assert prompt == (
        "<|begin_of_text|>"
        "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nYes<|eot_id|>"
    )
    assert chat.writes_bos(prompt)


def test_llama2():
    """Blocks leave no blank lines behind, and a template may refuse the order of messages."""
    assert render(LLAMA2, TALK) == (
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST]  Yes  </s>"
    )
    with pytest.raises(ChatError, match=r"^chat template: Roles must alternate user/assistant$"):
        render(LLAMA2, [USER, USER])


def test_transformers_extensions():
    """Loop controls, tojson, strftime_now, generation marks and absent tools work."""
    assert (
        render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "01"
    )
    assert render("{{ {'b': '<é>', 'a': 1} | tojson }}") == '{"b": "<é>", "a": 1}'
    assert json.loads(render("{{ messages | tojson(indent=2) }}")) == [USER]
    assert render("{{ strftime_now('%Y') }}").startswith("20")
    assert render("{% if tools %}tools{% endif %}{{ nobody }}.") == "."
    assert render("{%- generation -%} a {%- endgeneration %}b") == "ab"


@settings(deadline=None, max_examples=100, derandomize=True)
@given(content=st.text())
def test_content_is_not_interpreted(content):
    """A message's text is unchanged, with any Jinja or HTML in it."""
    assert render("{{ messages[0]['content'] }}", [{"role": "user", "content": content}]) == content


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "there are no messages"),
        ("hello", "messages must be a list, got str"),
        (USER, "messages must be a list, got dict"),
        (["hello"], "message 0 must be a mapping, got str"),
        (
            [USER, {"role": "tool", "content": ""}],
            "message 1 has role 'tool'; roles are system, us",
        ),
        ([{"content": "Hi"}], "message 0 has role None"),
        ([{"role": "user"}], "message 0 must have a str as content, got NoneType"),
        ([{"role": "user", "content": ["Hi"]}], "message 0 must have a str as content, got list"),
    ],
)
def test_bad_messages_are_refused(messages, message):
    """A malformed message is refused with its number and the error."""
    with pytest.raises(ChatError, match=f"^{message}"):
        ChatTemplate(CHATML, "", "").render(messages)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for m in messages %}", "Unexpected end of template.*line 1"),
        ("\n{{ 1 + }}", "unexpected 'end of print statement' .line 2."),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ messages[0].content.nobody.home }}", "has no attribute 'nobody'"),
        ("{{ messages | nobody }}", "No filter named 'nobody'"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ 'a' + 1 }}", "str"),
        ("{{ raise_exception('no\nway') }}", "no way"),
        ("(" * 9 + "{{ " + "(" * 5000 + ")" * 5000 + " }}", "."),
    ],
)
def test_template_errors_are_one_plain_line(source, message):
    """A template with an error, or one that raises, ends in one line, never a traceback."""
    with pytest.raises(ChatError, match=f"^chat template: .*{message}") as caught:
        render(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ (messages | map(attribute='__class__') | first).__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
    ],
)
def test_sandbox_holds(source):
    """A template reaches neither Python's insides nor the caller's messages."""
    messages = [dict(USER)]
    with pytest.raises(ChatError, match=r"^chat template: "):
        render(source, messages)
    assert messages == [USER]


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(90) }}",
        "{% for i in [[1, 1]] recursive %}{{ loop([[1, 1], [1, 1]]) }}{% endfor %}",
        "{{ 'a' * 10 ** 12 }}",
        "{{ (10 ** 9) * [0] }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
    ],
)
def test_endless_templates_end(source):
    """Loops, recursion, powers and repetition are bounded: such templates end within seconds."""
    start = time.perf_counter()
    with pytest.raises(ChatError, match=r"^chat template: "):
        render(source)
    assert time.perf_counter() - start < 10
