"""JSON Lines files of prompts and of their answers."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, BinaryIO

from engine.atomic_write import OutputError, check
from engine.closeable import Closeable
from engine.file_errors import unwritable
from engine.generation.results import RequestOutput
from engine.sampling.params import SamplingParams
from engine.sampling.structured_params import StructuredOutputsParams
from engine.schedule.request import Request

BEGIN = b'{"id": '
OURS = {"id", "prompt", "messages", "params"}
NOT_IN_FILES = {"n", "logits_processors", "detokenize", "prompt_logprobs"}
NAMES = {f.name for f in fields(SamplingParams)} - NOT_IN_FILES
Encode = Callable[[Any], list[int]]  # messages to tokens


class LineError(ValueError):
    """An invalid line; the message tells why, and not where."""


class Questions:
    """The prompts of a file without those that have an answer; `numbers` are of the lines in
    progress."""

    def __init__(self, file: BinaryIO, usual: SamplingParams, answered: set[str]) -> None:
        self.ids: dict[str, Any] = {}
        self.failed: dict[int, str] = {}
        self._file, self._usual, self._known = file, usual, answered

    def requests(self, encode: Encode) -> Iterator[Request]:
        """Each as a scheduler takes it, `id` being the number of its line; `failed` receives
        errors."""
        seen: set[str] = set()
        for number, line in enumerate(self._file, start=1):
            if not line.strip():
                continue
            try:
                found = _object(line)
                own = found.get("id", number)
                if not isinstance(own, str | int) or isinstance(own, bool):
                    raise LineError(f"id is {own!r}: want a text or a whole number")
                key = json.dumps(own)
                if key in seen:
                    raise LineError(f"id {key} was there before")
                seen.add(key)
                if key in self._known:
                    continue
                params = _params(self._usual, found.get("params", {}))
                request = Request(str(number), _prompt(found, encode), params)
            except ValueError as error:  # of JSON, of messages, of parameters
                self.fails(number, error)
                continue
            self.ids[request.id] = own
            yield request

    def fails(self, number: int, error: Exception) -> None:
        """Report a line that fails."""
        self.failed[number] = " ".join(str(error).split())


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except RecursionError:
        raise LineError("its JSON is nested too deeply") from None
    except ValueError as error:
        raise LineError(f"this is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise LineError("this is no object of JSON")
    if unknown := sorted(found.keys() - OURS):
        raise LineError(f"{unknown[0]!r} is unknown: a line has {', '.join(sorted(OURS))}")
    return found


def _prompt(found: dict[str, Any], encode: Encode) -> str | list[int]:
    if ("prompt" in found) == ("messages" in found):
        raise LineError("want a prompt or messages, one of them")
    if "messages" in found:
        return encode(found["messages"])
    prompt = found["prompt"]
    tokens = isinstance(prompt, list) and all(type(token) is int for token in prompt)
    if not (isinstance(prompt, str) or tokens):
        raise LineError("prompt is neither a text nor a list of tokens")
    return prompt  # type: ignore[no-any-return]


def _params(usual: SamplingParams, given: Any) -> SamplingParams:
    if not isinstance(given, dict):
        raise LineError("params is no object of JSON")
    if unknown := sorted(given.keys() - NAMES):
        raise LineError(f"params has {unknown[0]!r}, which is none of {', '.join(sorted(NAMES))}")
    if isinstance(biases := given.get("logit_bias"), dict):  # whose keys are strings in JSON
        given = given | {"logit_bias": {_whole(token): bias for token, bias in biases.items()}}
    try:
        if isinstance(form := given.get("structured_outputs"), dict):
            given = given | {"structured_outputs": StructuredOutputsParams(**form)}
        return replace(usual, **given)
    except TypeError as error:
        raise LineError(f"params: {error}") from None


def _whole(token: str) -> int:
    try:
        return int(token)
    except ValueError:
        raise LineError(f"logit_bias has {token!r}, which is no token's id") from None


class Answers(Closeable):
    """A file of answers, appended by whole lines, and by one process at a time. A line has an "id"
    and at least the field called `has`.

    A partial line of a killed process is dropped. Raises OutputError where the file cannot be
    written, or has other contents.
    """

    def __init__(self, path: Path, reads: Path | None = None, has: str = "finish_reason") -> None:
        check(path, reads)
        self.path, self._has = path, has
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise OutputError(unwritable(path, error)) from None
        try:
            self._lock()
            self.ids, self._size = self._read()
            os.ftruncate(self._fd, self._size)
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OutputError(f"{self.path}: another program is writing it") from None

    def _read(self) -> tuple[set[str], int]:
        """The ids in the file, and where whole lines end."""
        ids: set[str] = set()
        size = 0
        with os.fdopen(os.dup(self._fd), "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n") and (line[:7] == BEGIN[: len(line)]):
                    break
                try:
                    found = json.loads(line)
                    _, own = found[self._has], found["id"]
                    ids.add(json.dumps(own))
                except (ValueError, KeyError, TypeError, RecursionError):
                    raise OutputError(
                        f"{self.path}: line {number} is no answer of this command, so nothing is"
                        " written here"
                    ) from None
                size += len(line)
        return ids, size

    def append(self, own: Any, told: Mapping[str, Any]) -> None:
        """Append an answer, its whole line or nothing."""
        line = (json.dumps({"id": own, **told}) + "\n").encode()
        try:
            done = os.pwrite(self._fd, line, self._size)
            if done < len(line):  # the disk is full: the next lines report it
                done += os.pwrite(self._fd, line[done:], self._size + done)
        except OSError as error:
            os.ftruncate(self._fd, self._size)
            raise OutputError(unwritable(self.path, error)) from None
        self._size += done

    def close(self) -> None:
        os.close(self._fd)


def answer_of(result: RequestOutput) -> dict[str, Any]:
    """An answer as a line's fields."""
    output = result.outputs[0]
    found: dict[str, Any] = {
        "text": output.text,
        "tokens": list(output.token_ids),
        "finish_reason": output.finish_reason,
    }
    if output.logprobs is not None:
        found["logprobs"] = [
            {
                "token": token,
                "logprob": known[token].logprob,
                "top": [[other, one.logprob] for other, one in known.items() if one.rank],
            }
            for token, known in zip(output.token_ids, output.logprobs, strict=True)
        ]
    return found


def opened(file: Path) -> tuple[BinaryIO, int | None]:
    """A file of prompts, and its number of lines if that can be known in advance."""
    if str(file) == "-":
        return os.fdopen(0, "rb", closefd=False), None
    handle = file.open("rb")
    total = sum(bool(line.strip()) for line in handle)
    handle.seek(0)
    return handle, total
