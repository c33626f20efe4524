"""Chat templates: render messages to a prompt.

A template is a Jinja program from a model file, hence untrusted. It runs in Jinja's sandbox, in a
fresh environment for each rendering, with limits on its steps (loop iterations and macro calls)
and on its output. This stops accidents and simple attacks; memory is not limited.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn

from engine.errors import EngineError

if TYPE_CHECKING:
    from jinja2 import nodes
    from jinja2.runtime import Context
    from jinja2.sandbox import ImmutableSandboxedEnvironment

ROLES: Final = ("system", "user", "assistant")
MAX_STEPS: Final = 1_000_000
MAX_OUTPUT: Final = 16_000_000
"""Maximum length of a rendered prompt, and of the result of one multiplication, in characters."""
MAX_POWER_BITS: Final = 4096
_STEP: Final = "take_step"
# transformers' tags around the assistant's text, used in training only.
_GENERATION_TAG: Final = re.compile(r"\{%(-?)\s*(end)?generation\s*(-?)%\}")


class ChatError(EngineError):
    """Messages or a template that cannot be rendered; the message is one line."""


def chat_template_source(metadata: Mapping[str, Any]) -> str:
    """Returns the source of the model's chat template; raises `ChatError` if it has none."""
    source = metadata.get("tokenizer.chat_template")
    if not isinstance(source, str):
        raise ChatError("the model has no chat template (tokenizer.chat_template)")
    return source


class ChatTemplate:
    """A chat template compiled from Jinja `source` (GGUF's `tokenizer.chat_template`).

    The template sees the texts of BOS and EOS ("" for none) as `bos_token` and `eos_token`.
    Raises `ChatError` if the source is not a valid template.
    """

    def __init__(self, source: str, bos_text: str, eos_text: str) -> None:
        self.bos_text: Final = bos_text
        self.eos_text: Final = eos_text
        environment = _environment()
        try:
            tree = environment.parse(_GENERATION_TAG.sub(_replace_generation_tag, source))
            _count_steps(tree)
            self._code: Final = environment.compile(tree)
        except Exception as error:  # a syntax error, or Python's nesting limit
            raise ChatError(_one_line(error)) from None

    def render(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Render a conversation in the format the model was trained on.

        Messages are `{"role": "system" | "user" | "assistant", "content": text}`, oldest first;
        `add_generation_prompt` appends the opening of the next assistant message. Encode the prompt
        with `parse_special=True`, and with `add_special=True` only if `writes_bos(prompt)` is
        false, so that there is exactly one BOS. Raises `ChatError` for invalid messages and for any
        error inside the template.
        """
        from jinja2 import Template

        variables = {
            "messages": checked_messages(messages),
            "add_generation_prompt": add_generation_prompt,
            "bos_token": self.bos_text,
            "eos_token": self.eos_text,
            "tools": None,
            "documents": None,
        }
        environment = _environment()
        template = Template.from_code(environment, self._code, environment.make_globals(None))
        parts: list[str] = []
        size = 0
        try:
            for part in template.generate(variables):
                parts.append(part)
                size += len(part)
                if size > MAX_OUTPUT:
                    raise ChatError(f"chat template: output exceeds {MAX_OUTPUT} characters")
        except ChatError:
            raise
        except Exception as error:  # untrusted code may raise anything
            raise ChatError(_one_line(error)) from None
        return "".join(parts)

    def writes_bos(self, prompt: str) -> bool:
        """Whether a rendered prompt already begins with BOS."""
        return bool(self.bos_text) and prompt.startswith(self.bos_text)


def _replace_generation_tag(tag: re.Match[str]) -> str:
    return f"{{%{tag[1]} {'endif' if tag[2] else 'if true'} {tag[3]}%}}"


def checked_messages(messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Validate messages; returns copies, which the template cannot share with the caller."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise ChatError(f"messages must be a list, got {type(messages).__name__}")
    if not messages:
        raise ChatError("there are no messages")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ChatError(f"message {i} must be a mapping, got {type(message).__name__}")
        if message.get("role") not in ROLES:
            raise ChatError(
                f"message {i} has role {message.get('role')!r}; roles are {', '.join(ROLES)}"
            )
        if not isinstance(message.get("content"), str):
            got = type(message.get("content")).__name__
            raise ChatError(f"message {i} must have a str as content, got {got}")
    return [dict(message) for message in messages]


def _environment() -> ImmutableSandboxedEnvironment:
    """A sandboxed environment with transformers' filters and functions, and a new step count."""
    from jinja2 import pass_context
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now

    # A single multiplication or power can hang the process.
    environment.intercepted_binops = frozenset({"*", "**"})
    environment.binop_table |= {"*": _multiply, "**": _power}

    steps_left = MAX_STEPS

    @pass_context  # keeps Jinja from folding the call into a constant
    def take_step(_context: Context, value: None) -> None:
        nonlocal steps_left
        steps_left -= 1
        if steps_left < 0:
            raise ChatError(f"chat template: exceeds {MAX_STEPS} steps")

    environment.filters[_STEP] = take_step
    return environment


def _count_steps(tree: nodes.Template) -> None:
    """Insert a counted step at the start of every body that may run repeatedly.

    One limit thus covers loops over ranges and strings, and recursion.
    """
    from jinja2 import nodes

    repeated: list[Any] = [*tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))]
    for node in repeated:
        step = nodes.Filter(nodes.Const(None), _STEP, [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))


def _raise_exception(message: object) -> NoReturn:
    """transformers' `raise_exception`, by which templates reject messages."""
    raise ChatError(f"chat template: {' '.join(str(message).split())}")


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it; Jinja's own filter escapes it for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _multiply(left: Any, right: Any) -> Any:
    sizes = [len(x) if isinstance(x, Sequence) else x for x in (left, right)]
    if isinstance(left, Sequence) != isinstance(right, Sequence) and math.prod(sizes) > MAX_OUTPUT:
        raise ChatError(f"chat template: a repeated text exceeds {MAX_OUTPUT} characters")
    return left * right


def _power(left: Any, right: Any) -> Any:
    whole = isinstance(left, int) and isinstance(right, int)
    if whole and left.bit_length() * right > MAX_POWER_BITS:
        raise ChatError(f"chat template: a power exceeds {MAX_POWER_BITS} bits")
    return left**right


def _one_line(error: Exception) -> str:
    message = " ".join(str(error).split()) or type(error).__name__
    line = getattr(error, "lineno", None)
    return f"chat template: {message}" + (f" (line {line})" if line is not None else "")
