"""The endpoints of the hub that uploads use, beside those of :mod:`tests.builders.hub_server`.

Large files come by Git LFS, the others in the commit. A token that may write is one of the hub's
``tokens``. What is stored, committed and asked can be looked at from the test.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import json
import re
import time
from urllib.parse import unquote, urlsplit

from tests.builders.hub_server import LARGE, Handler, HubServer, Repo, Request, git_oid

TOKEN = "hf_secret0123456789"


class UploadHub(HubServer):
    """A hub that can be published to.

    Attributes
    ----------
    stored : dict
        Large files by SHA-256: in the store, whether or not a commit shows them.
    messages : list of str
        Of the commits that were made by uploads.
    upload_cuts : int
        How many uploads of a large file to break off from here on.
    upload_pause : float
        Seconds before a large file is taken.
    refused : int or None
        Answer every request that writes with this error.
    meanwhile : dict or None
        Files that somebody else commits just before the next commit.
    """

    def __init__(self) -> None:
        super().__init__(UploadHandler)
        self.stored: dict[str, bytes] = {}
        self.messages: list[str] = []
        self.upload_cuts = 0
        self.upload_pause = 0.0
        self.refused: int | None = None
        self.meanwhile: dict[str, bytes] | None = None


class UploadHandler(Handler):
    """Answers what uploads ask; everything else is the other handler's."""

    def do_POST(self) -> None:
        self.write()

    def do_PUT(self) -> None:
        self.write()

    def dispatch(self) -> None:
        path = unquote(urlsplit(self.path).path)
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)/refs", path)
        if match is None:
            return super().dispatch()
        self.remember(path)
        found = self.find(match[1], "main")
        if found is None:
            return None
        refs = {name: sha for name, sha in found[0].refs.items() if not name.startswith("refs/")}
        tags = found[0].tags
        return self.json(
            {
                "branches": [_ref("heads", n, s) for n, s in refs.items() if n not in tags],
                "tags": [_ref("tags", n, s) for n, s in refs.items() if n in tags],
                "converts": [],
            }
        )

    @property
    def hub(self) -> UploadHub:
        hub = self.server.hub
        assert isinstance(hub, UploadHub)
        return hub

    def remember(self, path: str) -> None:
        self.hub.requests.append(
            Request(self.command, self.headers["Host"], path, dict(self.headers))
        )

    def write(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.remember(path)
        if self.hub.status is not None or self.hub.refused is not None:
            self.close_connection = True  # with a body that nobody reads
            return self.error(self.hub.status or self.hub.refused or 0, None, "the test says so")
        if self.command == "PUT":
            return self.take_large(path.rpartition("/")[2])
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if path == "/api/validate-yaml":
            return self.json({"errors": [], "warnings": []})
        if not self.headers.get("Authorization"):
            return self.error(401, None, "Invalid username or password.")
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        for pattern, answer in (
            (r"/api/models/([^/]+/[^/]+)/preupload/(.+)", self.preupload),
            (r"/([^/]+/[^/]+)\.git/info/lfs/objects/(batch)", self.batch),
            (r"/api/models/([^/]+/[^/]+)/branch/(.+)", self.branch),
            (r"/api/models/([^/]+/[^/]+)/commit/(.+)", self.commit),
        ):
            if match := re.fullmatch(pattern, path):
                found = self.find(match[1], "main")
                return None if found is None else answer(found[0], match[1], match[2], body)
        return self.error(404, None, "no such endpoint")

    def create(self, asked: dict[str, str]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if self.headers["Authorization"] not in {f"Bearer {t}" for t in self.hub.tokens}:
            return self.error(403, None, "You don't have the rights to create a model")
        if name in self.hub.repos:
            return self.error(409, None, "You already created this model repo")
        repo = self.hub.repo(name)
        repo.private = asked.get("visibility") == "private" or bool(asked.get("private"))
        repo.commit({".gitattributes": b"*.safetensors filter=lfs\n"})
        return self.json({"url": f"{self.hub.url}/{name}", "name": name})

    def preupload(self, repo: Repo, name: str, revision: str, body: bytes) -> None:
        sha = repo.resolve(revision)
        if sha is None:
            return self.error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        there, asked = repo.commits[sha], json.loads(body)
        ignored = asked.get("gitIgnore", there.get(".gitignore", b"").decode()).split()
        answers = []
        for file in asked["files"]:
            path = file["path"]
            large = path.endswith(LARGE) or b"\0" in base64.b64decode(file["sample"])
            content = there.get(path)
            answers.append(
                {
                    "path": path,
                    "uploadMode": "lfs" if large else "regular",
                    "shouldIgnore": any(fnmatch.fnmatch(path, one) for one in ignored),
                    "oid": None
                    if content is None
                    else hashlib.sha256(content).hexdigest()
                    if large
                    else git_oid(content),
                }
            )
        return self.json({"files": answers})

    def batch(self, repo: Repo, name: str, what: str, body: bytes) -> None:
        objects = []
        for one in json.loads(body)["objects"]:
            answer = {"oid": one["oid"], "size": one["size"]}
            if one["oid"] not in self.hub.stored:
                href = f"http://localhost:{self.server.server_port}/store/{one['oid']}"
                answer["actions"] = {"upload": {"href": href}}
            objects.append(answer)
        self.json({"transfer": "basic", "objects": objects})

    def take_large(self, oid: str) -> None:
        length = int(self.headers["Content-Length"])
        if self.hub.upload_cuts:
            self.hub.upload_cuts -= 1
            self.rfile.read(length // 2)
            self.close_connection = True
            self.connection.close()
            return None
        time.sleep(self.hub.upload_pause)
        content = self.rfile.read(length)
        if hashlib.sha256(content).hexdigest() != oid:
            return self.error(400, None, "other bytes than were announced")
        self.hub.stored[oid] = content
        return self.answer(200, {}, b"")

    def branch(self, repo: Repo, name: str, branch: str, body: bytes) -> None:
        repo.refs[branch] = json.loads(body).get("startingPoint") or repo.refs["main"]
        self.json({})

    def commit(self, repo: Repo, name: str, branch: str, body: bytes) -> None:
        lines = [json.loads(line) for line in body.splitlines()]
        header = lines[0]["value"]
        if self.hub.meanwhile is not None:
            repo.commit(self.hub.meanwhile, branch)
            self.hub.meanwhile = None
        head = repo.refs.get(branch)
        if head is None:
            return self.error(404, "RevisionNotFound", f"Invalid rev id: {branch}")
        if header.get("parentCommit") not in (None, head):
            return self.error(412, None, "A commit has happened since. Please refresh and retry.")
        files = dict(repo.commits[head])
        for line in lines[1:]:
            value = line["value"]
            match line["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    if value["oid"] not in self.hub.stored:
                        return self.error(400, None, f"no such object: {value['oid']}")
                    files[value["path"]] = self.hub.stored[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        sha = repo.commit(files, branch)
        self.hub.messages.append(header["summary"])
        return self.json(
            {"commitUrl": f"{self.hub.url}/{name}/commit/{sha}", "commitOid": sha, "success": True}
        )


def _ref(kind: str, name: str, sha: str) -> dict[str, str]:
    return {"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": sha}
