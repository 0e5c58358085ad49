"""A local hub for tests: the part of the HTTP interface of Hugging Face that its clients use.

It has repositories of models and data sets with commits, branches, gates and renamed repositories,
and accepts uploads. `requests` are the requested paths.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_of-a-test"
LARGE = 2**20  # bytes, above which a file is stored by LFS
_API = re.compile(r"/api/(models|datasets)/([\w.-]+/[\w.-]+)(?:/([\w-]+)/?(.*))?")
_FILE = re.compile(r"/(datasets/)?([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)")


@dataclass
class Repository:
    """Files by commit; `main` is the commit of the main branch."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    private: bool = False

    def commit(self, files: Mapping[str, bytes]) -> str:
        """Make these files the main branch; return the commit."""
        seed = json.dumps([*sorted(files), len(self.commits)]).encode()
        name = hashlib.sha1(seed + b"".join(files.values())).hexdigest()
        self.commits[name] = dict(files)
        self.refs["main"] = name
        return name

    def resolve(self, revision: str) -> str | None:
        return self.refs.get(revision, revision if revision in self.commits else None)


@dataclass
class Hub:
    """All repositories by kind and name, as in "models/org/name", and the requests received."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)  # files whose connection is cut
    tokens: set[str | None] = field(default_factory=set)

    def add(self, name: str, files: Mapping[str, bytes], **how: Any) -> Repository:
        made = self.repositories[name] = Repository(**how)
        made.commit(files)
        return made

    def add_folder(self, name: str, folder: Path, **how: Any) -> Repository:
        files = [path for path in folder.rglob("*") if path.is_file()]
        contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
        return self.add(name, contents, **how)

    def fetched(self) -> list[str]:
        """Return the names of the fetched files."""
        return [path.rpartition("/")[2] for path in self.requests if path.startswith("GET /org")]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._read()
        self._answer()

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._answer(self._read())

    do_PUT = do_POST

    def _read(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    # -- requests ------------------------------------------------------------------------------

    def _answer(self, body: bytes = b"") -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        self.hub.tokens.add(token)
        if path == "/api/repos/create":
            return self._create(json.loads(body), token)
        if path == "/api/whoami-v2":
            return self._json({"name": "org", "type": "user", "auth": {"type": "access_token"}})
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if found := _FILE.fullmatch(path):
            kind = "datasets" if found[1] else "models"
            return self._of(kind, found[2], token, lambda r: self._file(r, found[3], found[4]))
        if found := _API.fullmatch(path):
            kind, name, what, rest = found.groups()
            return self._of(kind, name, token, lambda r: self._api(r, name, what, rest, body))
        return self._error(404, "EntryNotFound", "nothing here")

    def _of(self, kind: str, name: str, token: str | None, answer: Any) -> None:
        """Answer a request about a repository that exists and may be read."""
        hub = self.hub
        if (new := hub.renamed.get(f"{kind}/{name}")) is not None:
            target = self.path.replace(name, new.partition("/")[2])
            return self._send(307, b"", {"Location": target})
        repository = hub.repositories.get(f"{kind}/{name}")
        if repository is None or (repository.private and token != TOKEN):
            return self._error(401, "RepoNotFound", "Repository not found")
        if repository.gated and token != TOKEN and "/resolve/" in self.path:
            status = 401 if token is None else 403
            return self._error(status, "GatedRepo", f"Access to {name} is restricted.")
        return answer(repository)

    def _api(self, repository: Repository, name: str, what: str, rest: str, body: bytes) -> None:
        if what == "preupload":
            files = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": "regular"} for f in files]
            return self._json({"files": [m | {"shouldIgnore": False} for m in modes]})
        if what == "commit":
            return self._commit(repository, name, body)
        revision, _, folder = (rest or "main").partition("/")
        commit = repository.resolve(revision)
        if commit is None:
            return self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        files = repository.commits[commit]
        if what == "tree":
            return self._json(_tree(files, folder, "recursive=true" in self.path.lower()))
        if what == "paths-info":
            wanted = parse_qs(body.decode())["paths"]
            every = [*_tree(files, "", True), *_tree(files, "", False)]
            return self._json(
                [e for e in {e["path"]: e for e in every}.values() if e["path"] in wanted]
            )
        siblings = [{"rfilename": path} for path in files]
        about = {"_id": name, "id": name, "sha": commit, "siblings": siblings, "tags": []}
        return self._json(about | {"private": repository.private, "gated": repository.gated})

    def _file(self, repository: Repository, revision: str, path: str) -> None:
        commit = repository.resolve(revision)
        if commit is None:
            return self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if path not in repository.commits[commit]:
            return self._error(404, "EntryNotFound", f"{path} is not there")
        data = repository.commits[commit][path]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_etag(data)}"', "Accept-Ranges": "bytes"}
        if len(data) > LARGE:
            headers |= {"X-Linked-Etag": f'"{_etag(data)}"', "X-Linked-Size": str(len(data))}
        if (asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))) is None:
            return self._send(200, data, headers, cut=path in self.hub.broken)
        begin, end = int(asked[1]), min(int(asked[2] or len(data) - 1), len(data) - 1)
        headers["Content-Range"] = f"bytes {begin}-{end}/{len(data)}"
        return self._send(206, data[begin : end + 1], headers)

    def _create(self, wish: dict[str, Any], token: str | None) -> None:
        if token != TOKEN:
            return self._error(401, "", "Invalid username or password.")
        owner = wish.get("organization") or "org"
        name = f"{wish.get('type', 'model')}s/{owner}/{wish['name']}"
        if name in self.hub.repositories:
            return self._json({"error": "You already created this repo"}, 409)
        private = bool(wish.get("private") or wish.get("visibility") == "private")
        self.hub.add(name, {}, private=private)
        return self._json({"url": f"{self.hub.url}/{owner}/{wish['name']}"})

    def _commit(self, repository: Repository, name: str, body: bytes) -> None:
        files = dict(repository.commits[repository.refs["main"]])
        for line in body.decode().splitlines():
            part = json.loads(line)
            if part["key"] == "file":
                files[part["value"]["path"]] = base64.b64decode(part["value"]["content"])
        commit = repository.commit(files)
        url = f"{self.hub.url}/{name}/commit/{commit}"
        return self._json({"success": True, "commitOid": commit, "commitUrl": url})

    # -- answers -------------------------------------------------------------------------------

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self._send(status, json.dumps({"error": message}).encode(), headers)

    def _send(
        self, status: int, data: bytes, headers: Mapping[str, str], cut: bool = False
    ) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if cut else data)
        self.close_connection = self.close_connection or cut


def _etag(data: bytes) -> str:
    """Return the identifier of a file: from git or, for large files, from LFS."""
    if len(data) > LARGE:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _tree(files: Mapping[str, bytes], folder: str, recursive: bool) -> list[dict[str, Any]]:
    """Return the contents of a folder, and of its subfolders if `recursive`."""
    found = {}
    for path, data in files.items():
        if not path.startswith(above := f"{folder}/" if folder else ""):
            continue
        name, _, below = path.removeprefix(above).partition("/")
        if below:
            oid = hashlib.sha1(name.encode()).hexdigest()
            entry = {"type": "directory", "path": f"{above}{name}", "size": 0, "oid": oid}
            found[f"{above}{name}"] = entry
        if recursive or not below:
            large = {"lfs": {"oid": _etag(data), "size": len(data), "pointerSize": 130}}
            about = {"type": "file", "path": path, "size": len(data), "oid": _etag(data)}
            found[path] = about | (large if len(data) > LARGE else {})
    return [*found.values()]


@contextmanager
def serving_hub() -> Iterator[Hub]:
    """Run a hub that answers inside the block."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
