"""Parameters of structured outputs, under vLLM's names."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from engine.errors import SamplingError

FORMATS = ("text", "json_object", "json_schema")


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """One of: `json`, a JSON schema as a mapping or as text; `regex`, a regular expression for the
    whole output; `choice`, a list of texts; `grammar`, in GBNF (llama.cpp) or Lark; `json_object`,
    any JSON object.

    >>> StructuredOutputsParams(choice=["yes", "no"])
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool = False

    def __post_init__(self) -> None:
        given = [f.name for f in fields(self) if getattr(self, f.name) not in (None, False)]
        if len(given) != 1:
            names = ", ".join(field.name for field in fields(self))
            raise SamplingError(
                f"structured_outputs has {' and '.join(given) or 'none'}: want one of {names}"
            )
        put = object.__setattr__
        if self.json_object:
            put(self, "json", {"type": "object"})
        if self.json is not None:
            put(self, "json", _schema(self.json))
        for name in ("regex", "grammar"):
            if not isinstance(text := getattr(self, name), str | None):
                raise SamplingError(f"structured_outputs: {name} is {text!r}: want a text")
        if self.choice is not None:
            texts = () if isinstance(self.choice, str) else tuple(self.choice)
            if not texts or any(not isinstance(text, str) or not text for text in texts):
                raise SamplingError(
                    f"structured_outputs: choice is {self.choice!r}: want texts that are not empty"
                )
            put(self, "choice", texts)

    @property
    def what(self) -> str:
        """A name for error messages."""
        names = {
            "json": "the JSON schema",
            "regex": "the regular expression",
            "choice": "the choice",
        }
        found = (name for field, name in names.items() if getattr(self, field) is not None)
        return next(found, "the grammar")

    @classmethod
    def of_response_format(cls, asked: Mapping[str, Any]) -> "StructuredOutputsParams | None":
        """From OpenAI's `response_format`; None: unconstrained."""
        kind = asked.get("type")
        if kind not in FORMATS:
            raise SamplingError(f"response_format is {kind!r}: want {', '.join(FORMATS)}")
        if kind == "json_schema":
            holder = asked.get("json_schema")
            schema = holder.get("schema") if isinstance(holder, Mapping) else None
            if not isinstance(schema, Mapping):
                raise SamplingError("response_format: json_schema has no schema")
            return cls(json=_schema(schema))
        return cls(json_object=True) if kind == "json_object" else None


def _schema(schema: Any) -> str:
    """A schema, which must be an object, as JSON text."""
    try:
        found = json.loads(schema) if isinstance(schema, str) else schema
        text = json.dumps(found)
    except (TypeError, ValueError, RecursionError) as error:
        raise SamplingError(f"structured_outputs: json is not a JSON schema: {error}") from error
    if not isinstance(found, Mapping):
        raise SamplingError(f"structured_outputs: json is {text:.40}: want an object, a schema")
    return text
