"""Pages of the web, with limits of time, size and redirects. Only public addresses are asked."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import httpx

from fieldcraft.tools.http import Sites
from fieldcraft.tools.unpacking import ACCEPTED, unpacked
from fieldcraft.types import ToolError
from fieldcraft.version import __version__
from fieldcraft.web.addresses import NotPublic, PinnedTransport, is_allowed
from fieldcraft.web.blocking import Blocklist
from fieldcraft.web.gate import HostGate
from fieldcraft.web.kept import Answer

BLOCKED = "The page may not be read here."
_HEADERS = {
    "user-agent": f"fieldcraft/{__version__}",
    "accept": "text/html,application/xhtml+xml,application/pdf,text/plain,*/*;q=0.5",
    "accept-encoding": ACCEPTED,
}
_LOCATION = "fieldcraft_location"  # among the extensions of a response
_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True)
class Fetcher:
    """Fetcher of pages.

    `seconds` are for a whole page, redirects included and waiting at the gate not; `most_bytes` of
    a page, unpacked; `redirects` that are followed; `allow` has the hosts that need not be public;
    `sites` are in this process.
    """

    seconds: float
    most_bytes: int
    redirects: int
    allow: tuple[str, ...]
    blocklist: Blocklist
    gate: HostGate
    sites: Sites = field(default_factory=dict)

    async def get(self, url: httpx.URL) -> Answer:
        """Get the page, or a failure."""
        way: list[httpx.URL] = []
        left = self.seconds
        async with httpx.AsyncClient(
            transport=PinnedTransport(self.allow),
            mounts=dict(self.sites),
            timeout=None,  # `left` limits everything together
            trust_env=False,
            headers=_HEADERS,
            event_hooks={"response": [_take_location]},
        ) as client:
            try:
                while True:
                    self._refuse(url, way)
                    way.append(url)
                    async with self.gate.turn(url.host):
                        start = asyncio.get_running_loop().time()
                        async with asyncio.timeout(left):
                            found = await self._once(client, url)
                        left -= asyncio.get_running_loop().time() - start
                    if isinstance(found, Answer):
                        inside = tuple(str(u) for u in way if is_allowed(u, self.allow))
                        return found.model_copy(
                            update={"way": tuple(map(str, way)), "inside": inside}
                        )
                    url = found
            except ToolError as error:
                return Answer(failure=str(error))
            except TimeoutError:
                return Answer(failure=f"{way[-1].host} did not answer in {self.seconds:g} s.")
            except httpx.HTTPError as error:
                return Answer(failure=_reason(error, way[-1]))

    def admitted(self, answer: Answer) -> Answer:
        """Return an answer that was kept, or a failure where other settings had allowed it."""
        if any(self.blocklist.blocks(url) for url in answer.way):
            return Answer(failure=BLOCKED)
        for url in map(httpx.URL, answer.inside):
            if not is_allowed(url, self.allow):
                return Answer(failure=_not_public(url))
        if len(answer.content) > self.most_bytes:
            return Answer(failure=self._too_large)
        return answer

    @property
    def _too_large(self) -> str:
        return f"The page is larger than {self.most_bytes / 2**20:g} MiB, so it was not read."

    def _refuse(self, url: httpx.URL, way: list[httpx.URL]) -> None:
        if len(way) > self.redirects:
            raise ToolError(f"The page redirects more than {self.redirects} times.")
        check_url(url, str(url))
        if self.blocklist.blocks(str(url)):
            raise ToolError(BLOCKED)

    async def _once(self, client: httpx.AsyncClient, url: httpx.URL) -> Answer | httpx.URL:
        """Get once the page at an address, or the address that it redirects to."""
        async with client.stream("GET", url) as response:
            location = response.extensions.get(_LOCATION)
            if response.status_code in _REDIRECTS and location is not None:
                return _redirected(url, location)
            if response.status_code in (404, 410):
                raise ToolError(f"There is no such page (status {response.status_code}).")
            if response.status_code != 200:
                raise ToolError(f"The server refused the page (status {response.status_code}).")
            content = await self._content(response)
        return Answer(status=200, kind=response.headers.get("content-type", ""), content=content)

    async def _content(self, response: httpx.Response) -> bytes:
        """Read the body and unpack it piece by piece, up to the limit."""
        content = bytearray()
        async for piece in unpacked(response):
            content += piece
            if len(content) > self.most_bytes:
                raise ToolError(self._too_large)
        return bytes(content)


async def _take_location(response: httpx.Response) -> None:
    """Keep a redirection from httpx, which makes a request of it at once and fails at addresses
    that only `_redirected` has a sentence for."""
    response.extensions[_LOCATION] = response.headers.pop("location", None)


def _redirected(url: httpx.URL, location: str) -> httpx.URL:
    try:
        return url.join(location).copy_with(fragment=None)
    except (httpx.InvalidURL, ValueError) as error:
        raise ToolError(
            f"The page redirects to '{location[:100]}', which is no address of a web page."
        ) from error


def whole_characters(text: str) -> str:
    """Return a text without halves of characters, which JSON can hold and no request can."""
    return text.encode(errors="replace").decode()


def parse_url(text: str) -> httpx.URL:
    """Parse the address that a model wrote, without its fragment. Raises ToolError for none."""
    text = whole_characters(text).strip()
    try:
        url = httpx.URL(text if "://" in text else f"https://{text}").copy_with(fragment=None)
    except (httpx.InvalidURL, ValueError) as error:
        raise ToolError(_no_address(text)) from error
    check_url(url, text)
    return url


def check_url(url: httpx.URL, text: str) -> None:
    """Raise ToolError for an address, written as `text`, that is none of a page of the web."""
    if url.scheme not in ("http", "https") or not url.host:
        raise ToolError(_no_address(text))
    if url.userinfo:
        raise ToolError("Addresses with a name and a password are not read.")


def _no_address(text: str) -> str:
    return f"'{text[:100]}' is no address of a web page; it begins with http:// or https://."


def _not_public(url: httpx.URL) -> str:
    return f"{url.host} is not on the public internet, so it was not asked."


def _reason(error: httpx.HTTPError, url: httpx.URL) -> str:
    match error:
        case NotPublic():
            return _not_public(url)
        case httpx.ConnectError():
            return f"{url.host} cannot be reached."
        case httpx.DecodingError():
            return f"The page is damaged: {error}."
        case httpx.RemoteProtocolError() | httpx.ReadError():
            return f"{url.host} did not answer as a web server does, or ended too early."
    return f"The page could not be read ({type(error).__name__})."
