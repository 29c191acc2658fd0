"""A model hub on this machine: the endpoints of the Hugging Face hub that downloads use.

It speaks plain HTTP on 127.0.0.1 from a thread. Large files are answered with a redirect to
``localhost``, as the real hub redirects to another host that must not see the user's token.
Repositories, tokens and faults are attributes, changed by the test while the server runs.

    with HubServer() as hub:
        hub.repo("owner/name").commit({"config.json": b"{}"})
        ... HF_ENDPOINT=hub.url ...

Uploads are added by :mod:`tests.builders.hub_uploads`.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

LARGE = (".safetensors", ".gguf", ".bin")
PAGE = 3


@dataclass
class Repo:
    """One model repository: its commits, and what its branches and tags stand for."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    tags: set[str] = field(default_factory=set)
    gated: bool = False
    private: bool = False

    def commit(self, files: Mapping[str, bytes], ref: str = "main") -> str:
        """Make the files the content of a branch; return the commit."""
        text = json.dumps({k: hashlib.sha256(v).hexdigest() for k, v in files.items()})
        sha = hashlib.sha1(f"{len(self.commits)} {text}".encode()).hexdigest()
        self.commits[sha] = dict(files)
        self.refs[ref] = sha
        return sha

    def resolve(self, revision: str) -> str | None:
        if revision in self.commits:
            return revision
        return self.refs.get(revision)


@dataclass(frozen=True)
class Request:
    method: str
    host: str
    path: str
    headers: Mapping[str, str]


class Handler(BaseHTTPRequestHandler):
    """Answers one request from the state of ``self.server.hub``."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        self.dispatch()

    def do_HEAD(self) -> None:
        self.dispatch()

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def dispatch(self) -> None:
        hub = self.server.hub
        url = urlsplit(self.path)
        path = unquote(url.path)
        request = Request(self.command, self.headers["Host"], path, dict(self.headers))
        hub.requests.append(request)
        if hub.status is not None:
            return self.error(hub.status, None, "the test says so")
        if match := re.fullmatch(r"/cdn/([0-9a-f]{64})", path):
            return self.large(match[1])
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            return self.info(match[1], match[2] or "main")
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+|refs/\w+/\w+)", path):
            return self.tree(match[1], match[2], parse_qs(url.query))
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/(refs/\w+/\w+|[^/]+)/(.+)", path):
            return self.resolve(*match.groups())
        return self.error(404, None, "no such endpoint")

    def authorised(self, repo: Repo) -> bool:
        return self.headers.get("Authorization") in {f"Bearer {t}" for t in self.server.hub.tokens}

    def find(self, name: str, revision: str) -> tuple[Repo, str] | None:
        """Return the repository and commit, or answer with the hub's error and return None."""
        repo = self.server.hub.repos.get(name)
        if self.headers.get("Authorization") and repo is not None and not self.authorised(repo):
            return self.error(401, None, "Invalid credentials in Authorization header")
        if repo is None or (repo.private and not self.authorised(repo)):
            # The hub does not tell a stranger whether a private repository exists.
            code = 404 if self.headers.get("Authorization") else 401
            return self.error(code, "RepoNotFound", "Repository not found")
        sha = repo.resolve(revision)
        if sha is None:
            return self.error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repo, sha

    def info(self, name: str, revision: str) -> None:
        found = self.find(name, revision)
        if found is None:
            return
        repo, sha = found
        document = {
            "_id": "0",
            "id": name,
            "modelId": name,
            "sha": sha,
            "private": repo.private,
            "gated": "auto" if repo.gated else False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "siblings": [{"rfilename": path} for path in repo.commits[sha]],
        }
        self.json(document)

    def tree(self, name: str, revision: str, query: Mapping[str, list[str]]) -> None:
        found = self.find(name, revision)
        if found is None:
            return
        repo, sha = found
        entries: list[dict[str, object]] = []
        folders = {p.rpartition("/")[0] for p in repo.commits[sha] if "/" in p}
        entries += [{"type": "directory", "path": f, "oid": "0" * 40, "size": 0} for f in folders]
        for path, content in repo.commits[sha].items():
            entry: dict[str, object] = {
                "type": "file",
                "path": path,
                "size": len(content),
                "oid": git_oid(content),
            }
            if path.endswith(LARGE):
                digest = self.server.hub.claimed.get(path) or hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
            entries.append(entry)
        entries.sort(key=lambda entry: str(entry["path"]))
        start = int(query.get("cursor", ["0"])[0])
        links = {}
        if start + PAGE < len(entries):
            base = f"{self.server.hub.url}/api/models/{name}/tree/{quote(revision, safe='')}"
            links["Link"] = f'<{base}?recursive=True&cursor={start + PAGE}>; rel="next"'
        self.json(entries[start : start + PAGE], links)

    def resolve(self, name: str, revision: str, path: str) -> None:
        found = self.find(name, revision)
        if found is None:
            return
        repo, sha = found
        content = repo.commits[sha].get(path)
        headers = {"X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        if repo.gated and not self.authorised(repo):
            self.error(401, "GatedRepo", f"Access to model {name} is restricted.")
        elif content is None:
            self.error(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": sha})
        elif path.endswith(LARGE):
            self.redirect(path, content, headers)
        else:
            self.content(path, content, {**headers, "ETag": f'"{git_oid(content)}"'})

    def redirect(self, path: str, content: bytes, headers: dict[str, str]) -> None:
        digest = hashlib.sha256(content).hexdigest()
        claimed = self.server.hub.claimed.get(path, digest)
        self.server.hub.blobs[digest] = (path, content)
        headers |= {
            "X-Linked-Size": str(len(content)),
            "X-Linked-Etag": f'"{claimed}"',
            "Location": f"http://localhost:{self.server.server_port}/cdn/{digest}",
        }
        self.answer(302, headers, b"")

    def large(self, digest: str) -> None:
        path, content = self.server.hub.blobs[digest]
        self.content(path, content, {"ETag": f'"{digest}"', "Accept-Ranges": "bytes"})

    def content(self, path: str, content: bytes, headers: dict[str, str]) -> None:
        hub = self.server.hub
        status, body = 200, content
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted and not hub.ignore_ranges:
            start, end = int(wanted[1]), int(wanted[2] or len(content) - 1)
            body = content[start : end + 1]
            status = 206
            headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
        cuts = hub.cuts.get(path)
        if self.command == "GET" and cuts:
            return self.answer(status, headers, body, send=cuts.pop(0))
        return self.answer(status, headers, body)

    def json(self, document: object, headers: Mapping[str, str] | None = None) -> None:
        body = json.dumps(document).encode()
        self.answer(200, {"Content-Type": "application/json", **(headers or {})}, body)

    def error(
        self, status: int, code: str | None, message: str, more: Mapping[str, str] | None = None
    ) -> None:
        headers = {"Content-Type": "application/json", "X-Error-Message": message, **(more or {})}
        if code is not None:
            headers["X-Error-Code"] = code
        self.answer(status, headers, json.dumps({"error": message}).encode())

    def answer(
        self, status: int, headers: Mapping[str, str], body: bytes, send: int | None = None
    ) -> None:
        """Send an answer; with ``send``, promise all of the body and close after that much."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if send is not None:
            body = body[:send]
            self.close_connection = True
        pause = self.server.hub.seconds_per_block
        for start in range(0, len(body), 1 << 16):
            self.wfile.write(body[start : start + (1 << 16)])
            if pause:
                time.sleep(pause)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    hub: HubServer

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing when a client goes away."""


class HubServer:
    """The hub; see the module.

    Attributes
    ----------
    repos : dict
        Repositories by ``owner/name``.
    tokens : set of str
        Tokens that may read private and gated repositories.
    cuts : dict
        By file: how many bytes the next answers send before the connection closes.
    claimed : dict
        By file: a SHA-256 to publish instead of the true one.
    ignore_ranges : bool
        Whether a range is answered with the whole file.
    status : int or None
        Answer everything with this error.
    seconds_per_block : float
        Pause after each 64 KiB.
    requests : list of Request
        What has been asked, in order.
    """

    def __init__(self, handler: type[Handler] = Handler) -> None:
        self.repos: dict[str, Repo] = {}
        self.tokens: set[str] = set()
        self.cuts: dict[str, list[int]] = {}
        self.claimed: dict[str, str] = {}
        self.blobs: dict[str, tuple[str, bytes]] = {}
        self.ignore_ranges = False
        self.status: int | None = None
        self.seconds_per_block = 0.0
        self.requests: list[Request] = []
        self._server = _Server(("127.0.0.1", 0), handler)
        self._server.hub = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )

    def repo(self, name: str) -> Repo:
        """Return a repository, made if there is none of this name."""
        return self.repos.setdefault(name, Repo())

    def asked(self, part: str, method: str | None = None) -> list[Request]:
        """Return the requests whose path holds ``part``."""
        return [r for r in self.requests if part in r.path and method in (None, r.method)]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def use_only(hub: HubServer, at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the hub library know this hub, an empty cache below ``at``, and no token."""
    # It reads its settings when it is imported; they are changed where it keeps them.
    from huggingface_hub import constants

    for variable in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(at / "hub-cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(at / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)


def git_oid(content: bytes) -> str:
    """Return the id that git gives a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
