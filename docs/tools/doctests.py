"""In the Python reference, lines of docstrings after `>>>` are code, not quotations."""

import re
from typing import Any

import griffe

SESSION = re.compile(r"^>>> .*(?:\n(?:>>>|\.\.\.).*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Put them between fences."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: ARG002
        """Of every object that is read."""
        if obj.docstring:
            fenced = SESSION.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
            obj.docstring.value = fenced
