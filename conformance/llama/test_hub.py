"""Models from a hub on the loopback interface: downloaded once, resumed, and errors."""

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants

from conformance.support.models.spelling import TEXT
from conformance.support.program import fault, printed
from engine import Engine, SamplingParams
from engine.errors import PackageError
from engine.hub import HubError, fetch

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """A server with one file; the first GET responses break off after this many bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.data, self.cuts = data, []
        self.ranges: list[str | None] = []  # of every GET
        self.name = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        owner, repo, _, revision, file = self.path[1:].split("/", 4)
        if owner == "gated":
            return self._refuse(403, "GatedRepo")
        if (owner, repo) != ("we", "small"):
            return self._refuse(404, "RepoNotFound")
        if revision not in ("main", COMMIT):
            return self._refuse(404, "RevisionNotFound")
        if file != "sub/small.gguf":
            return self._refuse(404, "EntryNotFound")
        data, begin = self.server.data, 0
        asked = self.headers.get("Range")
        if body:
            self.server.ranges.append(asked)
            begin = int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
        self.send_response(206 if begin else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("Content-Length", str(len(data) - begin))
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if body:
            end = self.server.cuts.pop(0) if self.server.cuts else len(data)
            self.wfile.write(data[begin:end])
            self.close_connection = True
        return None

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def hub(spelling, tmp_path, monkeypatch) -> Iterator[Hub]:
    server = Hub(spelling.read_bytes())
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    for name, value in (
        ("HF_ENDPOINT", server.name),
        ("HF_HUB_CACHE", str(tmp_path / "cache")),
        ("NO_PROXY", "127.0.0.1"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


NAME = "hf:we/small:sub/small.gguf"


def test_a_hub_model_is_downloaded_once(hub, spelling):
    """The text is that of the local file; a second load downloads nothing, nor needs the hub."""
    params = SamplingParams(max_tokens=8, temperature=0)
    with Engine.load(spelling, threads=1, context=64) as engine:
        expected = engine.generate(TEXT, params).text
    for name in (NAME, NAME, f"hf:we/small@{COMMIT}:sub/small.gguf"):
        with Engine.load(name, threads=1, context=64) as engine:
            assert engine.generate(TEXT, params).text == expected
    assert hub.ranges == [None]
    hub.shutdown()
    hub.server_close()
    with Engine.load(NAME, threads=1, context=64) as engine:
        assert engine.generate(TEXT, params).text == expected


def test_an_interrupted_download_resumes(hub, monkeypatch):
    """The download resumes at the end of the written blocks, here of 10,000 bytes."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
    hub.cuts = [60_000, 20_000]
    assert len(hub.data) > 100_000
    assert fetch(NAME).read_bytes() == hub.data
    assert hub.ranges[0] is None
    assert all(asked for asked in hub.ranges[1:])
    assert len(hub.ranges) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:we/small:no.gguf", "the repository has no such file$"),
        ("hf:we/none:small.gguf", "no such public repository on the hub$"),
        ("hf:we/small@old:small.gguf", "the repository has no such revision$"),
        ("hf:gated/small:small.gguf", "gated repository: accept the terms"),
        ("hf:small.gguf", "want hf:OWNER/REPO:FILE.gguf, or"),
        ("hf:we/small", "want hf:OWNER/REPO:FILE.gguf, or"),
        ("hf:we/sm--all:small.gguf", "download failed: "),
    ],
)  # fmt: skip
def test_missing_hub_models_are_reported(hub, name, message):
    with pytest.raises(HubError, match=message) as caught:
        Engine.load(name)
    assert str(caught.value).startswith(f"{name}: ")
    assert "\n" not in str(caught.value)
    assert not hub.ranges


def test_hub_names_on_the_command_line(hub, inside):
    """Every command accepts a hub name; without the hub, one line and exit status 1."""
    stdout = printed(inside("tokenize", NAME, "a b", "--json"))
    assert json.loads(stdout)["ids"]
    said = fault(inside("run", "hf:we/small:no.gguf", "-p", "a"))
    assert said == "hf:we/small:no.gguf: the repository has no such file"


def test_without_the_hub(hub, inside):
    """One line at once, where the package alone would retry for half a minute."""
    hub.shutdown()
    hub.server_close()
    with pytest.raises(HubError, match="the hub cannot be reached, and the file is not in"):
        Engine.load(NAME)
    assert "the hub cannot be reached" in fault(inside("run", NAME, "-p", "a"))


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(PackageError, match=r"pip install 'assay\[hub\]'$"):
        Engine.load(NAME)
