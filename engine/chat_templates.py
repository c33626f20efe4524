"""Built-in chat templates by name, for models whose file has none, in Jinja.

Names and texts are llama.cpp's (its src/llama-chat.cpp, `--chat-template NAME`); `mistral` is
`mistral-v3`. Templates do not write BOS; the tokenizer adds it.
"""

from pathlib import Path
from typing import Final

from engine.chat import ChatError
from engine.file_errors import unreadable

_EACH: Final = "{% for message in messages %}"
_ROLE: Final = "{{ message.role }}"
_TEXT: Final = "{{ message.content }}"
_TRIMMED: Final = "{{ message.content | trim }}"
_GENERATION_PROMPT: Final = "{% endfor %}{% if add_generation_prompt %}"
_END: Final = "{% endif %}"


def _uniform(before: str, between: str, after: str, role: str = _ROLE, text: str = _TEXT) -> str:
    """A template with the same markers around every message, with its role."""
    opening = before.replace(role, "assistant") if role in before else before + "assistant"
    return (
        f"{_EACH}{before}{'' if role in before else role}{between}{text}{after}"
        f"{_GENERATION_PROMPT}{opening}{between}{_END}"
    )


def _by_role(system: str, user: str, assistant: str, opening: str, before: str = "") -> str:
    """A template with separate markers for each role."""
    return (
        f"{before}{_EACH}"
        f"{{% if message.role == 'system' %}}{system}"
        f"{{% elif message.role == 'user' %}}{user}"
        f"{{% else %}}{assistant}{{% endif %}}"
        f"{_GENERATION_PROMPT}{opening}{_END}"
    )


def _by_turn(begin: str, system: str, user: str, assistant: str) -> str:
    """A template with `begin` at the start of each turn: a system or user message."""
    starts = "loop.first or loop.previtem.role == 'assistant'"
    return (
        f"{_EACH}{{% if {starts} %}}{begin}{{% endif %}}"
        f"{{% if message.role == 'system' %}}{system}"
        f"{{% elif message.role == 'user' %}}{user}"
        f"{{% else %}}{assistant}{{% endif %}}{{% endfor %}}"
    )


def _mistral(space: str, leading: str = "", text: str = _TEXT) -> str:
    return _by_turn(
        f"{leading}[INST]{space}",
        _TEXT + "{{ '\\n\\n' }}",
        f"{_TEXT}{leading}[/INST]",
        f"{space}{text}</s>",
    )


_GEMMA: Final = (
    "{% set ns = namespace(system='') %}" + _EACH + "{% if message.role == 'system' %}"
    "{% set ns.system = ns.system + message.content | trim %}{% else %}"
    "<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}{{ '\\n' }}"
    "{% if ns.system and message.role == 'user' %}{{ ns.system + '\\n\\n' }}"
    "{% set ns.system = '' %}{% endif %}"
    + _TRIMMED
    + "<end_of_turn>{{ '\\n' }}{% endif %}"
    + _GENERATION_PROMPT
    + "<start_of_turn>model{{ '\\n' }}"
    + _END
)
_LINE: Final = "{{ '\\n' }}"
_TURN: Final = "<|START_OF_TURN_TOKEN|>"

TEMPLATES: Final[dict[str, str]] = {
    "chatml": _uniform("<|im_start|>", _LINE, f"<|im_end|>{_LINE}"),
    "llama2": _by_turn("[INST] ", _TEXT + _LINE, f"{_TEXT} [/INST]", f"{_TEXT}</s>"),
    "llama2-sys": _by_turn(
        "[INST] ",
        f"<<SYS>>{_LINE}{_TEXT}{_LINE}<</SYS>>{_LINE}{_LINE}",
        f"{_TEXT} [/INST]",
        f"{_TEXT}</s>",
    ),
    "llama3": _uniform(
        "<|start_header_id|>", f"<|end_header_id|>{_LINE}{_LINE}", "<|eot_id|>", text=_TRIMMED
    ),
    "gemma": _GEMMA,
    "mistral": _mistral(" ", text=_TRIMMED),
    "mistral-v1": _mistral(" ", " "),
    "mistral-v3": _mistral(" ", text=_TRIMMED),
    "mistral-v3-tekken": _mistral(""),
    "mistral-v7": _by_role(
        f"[SYSTEM_PROMPT] {_TEXT}[/SYSTEM_PROMPT]", f"[INST] {_TEXT}[/INST]", f" {_TEXT}</s>", ""
    ),
    "mistral-v7-tekken": _by_role(
        f"[SYSTEM_PROMPT]{_TEXT}[/SYSTEM_PROMPT]", f"[INST]{_TEXT}[/INST]", f"{_TEXT}</s>", ""
    ),
    "phi3": _uniform(f"<|{_ROLE}|>", _LINE, f"<|end|>{_LINE}"),
    "phi4": _uniform("<|im_start|>", "<|im_sep|>", "<|im_end|>"),
    "falcon3": _uniform(f"<|{_ROLE}|>", _LINE, _LINE),
    "zephyr": _uniform(f"<|{_ROLE}|>", _LINE, f"<|endoftext|>{_LINE}"),
    "vicuna": _by_role(
        _TEXT + _LINE + _LINE,
        f"USER: {_TEXT}{_LINE}",
        f"ASSISTANT: {_TEXT}</s>{_LINE}",
        "ASSISTANT:",
    ),
    "deepseek": _by_role(
        _TEXT,
        f"### Instruction:{_LINE}{_TEXT}{_LINE}",
        f"### Response:{_LINE}{_TEXT}{_LINE}<|EOT|>{_LINE}",
        f"### Response:{_LINE}",
    ),
    "deepseek2": _by_role(
        _TEXT + _LINE + _LINE,
        f"User: {_TEXT}{_LINE}{_LINE}",
        f"Assistant: {_TEXT}<｜end▁of▁sentence｜>",
        "Assistant:",
    ),
    "deepseek3": _by_role(
        _TEXT + _LINE + _LINE,
        f"<｜User｜>{_TEXT}",
        f"<｜Assistant｜>{_TEXT}<｜end▁of▁sentence｜>",
        "<｜Assistant｜>",
    ),
    "command-r": _by_role(
        f"{_TURN}<|SYSTEM_TOKEN|>{_TRIMMED}<|END_OF_TURN_TOKEN|>",
        f"{_TURN}<|USER_TOKEN|>{_TRIMMED}<|END_OF_TURN_TOKEN|>",
        f"{_TURN}<|CHATBOT_TOKEN|>{_TRIMMED}<|END_OF_TURN_TOKEN|>",
        f"{_TURN}<|CHATBOT_TOKEN|>",
    ),
    "chatglm4": "[gMASK]<sop>"
    + _EACH
    + f"<|{_ROLE}|>{_LINE}{_TEXT}{_GENERATION_PROMPT}<|assistant|>{_LINE}{_END}",
}


def template_source(given: str) -> str:
    """Returns the source of a built-in template, or reads it from the file `given`.

    Raises `ChatError` if there is no such name and no such file."""
    if given in TEMPLATES:
        return TEMPLATES[given]
    try:
        return Path(given).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ChatError(
            f"{given}: neither a file nor one of the templates {', '.join(TEMPLATES)}"
        ) from None
    except UnicodeDecodeError:
        raise ChatError(f"{given}: a template must be UTF-8") from None
    except OSError as error:
        raise ChatError(unreadable(Path(given), error)) from None
