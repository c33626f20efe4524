"""Show doctests in docstrings as code in the Python reference."""

import re
from typing import Any

import griffe

SESSION = re.compile(r"^>>> .*(?:\n(?:>>>|\.\.\.).*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Wrap doctests in code fences."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: ARG002
        """Called for every object."""
        if obj.docstring:
            fenced = SESSION.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
            obj.docstring.value = fenced
