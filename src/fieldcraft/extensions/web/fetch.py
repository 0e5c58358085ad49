"""Download of web pages from public addresses, with limits on time, size and redirects."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import httpx

from fieldcraft.extensions.web.addresses import NonPublicAddressError, PinnedTransport, is_allowed
from fieldcraft.extensions.web.blocking import Blocklist
from fieldcraft.extensions.web.rate_limit import HostRateLimiter
from fieldcraft.extensions.web.response_cache import CachedResponse
from fieldcraft.tools.http import ACCEPTED_ENCODING, InProcessSites, decompress_response
from fieldcraft.types import ToolError
from fieldcraft.version import __version__

BLOCKED_MESSAGE = "The page may not be read here."
_HEADERS = {
    "user-agent": f"fieldcraft/{__version__}",
    "accept": "text/html,application/xhtml+xml,application/pdf,text/plain,*/*;q=0.5",
    "accept-encoding": ACCEPTED_ENCODING,
}
_LOCATION_EXTENSION = "fieldcraft_location"  # key in the extensions of a response
_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True)
class PageFetcher:
    """Fetcher of pages.

    `timeout_seconds` applies to a whole page, including redirects and excluding the wait for the
    rate limiter. `max_bytes` is the size of a decompressed page. `allowed_hosts` has the hosts that
    may be non-public. `sites` are web sites in this process.
    """

    timeout_seconds: float
    max_bytes: int
    max_redirects: int
    allowed_hosts: tuple[str, ...]
    blocklist: Blocklist
    rate_limiter: HostRateLimiter
    sites: InProcessSites = field(default_factory=dict)

    async def fetch(self, url: httpx.URL) -> CachedResponse:
        """Fetch a page, and return it or a failure."""
        visited: list[httpx.URL] = []
        remaining = self.timeout_seconds
        async with httpx.AsyncClient(
            transport=PinnedTransport(self.allowed_hosts),
            mounts=dict(self.sites),
            timeout=None,  # `remaining` limits everything together
            trust_env=False,
            headers=_HEADERS,
            event_hooks={"response": [_move_location]},
        ) as client:
            try:
                while True:
                    self._require_fetchable(url, visited)
                    visited.append(url)
                    async with self.rate_limiter.slot(url.host):
                        start = asyncio.get_running_loop().time()
                        async with asyncio.timeout(remaining):
                            found = await self._fetch_once(client, url)
                        remaining -= asyncio.get_running_loop().time() - start
                    if isinstance(found, CachedResponse):
                        allowed_urls = tuple(
                            str(u) for u in visited if is_allowed(u, self.allowed_hosts)
                        )
                        return found.model_copy(
                            update={"way": tuple(map(str, visited)), "inside": allowed_urls}
                        )
                    url = found
            except ToolError as error:
                return CachedResponse(failure=str(error))
            except TimeoutError:
                return CachedResponse(
                    failure=f"{visited[-1].host} did not answer in {self.timeout_seconds:g} s."
                )
            except httpx.HTTPError as error:
                return CachedResponse(failure=_describe_error(error, visited[-1]))

    def revalidate(self, response: CachedResponse) -> CachedResponse:
        """Return a cached response, or a failure if the current settings do not allow it."""
        if any(self.blocklist.is_blocked(url) for url in response.way):
            return CachedResponse(failure=BLOCKED_MESSAGE)
        for url in map(httpx.URL, response.inside):
            if not is_allowed(url, self.allowed_hosts):
                return CachedResponse(failure=_make_non_public_message(url))
        if len(response.content) > self.max_bytes:
            return CachedResponse(failure=self._too_large_message)
        return response

    @property
    def _too_large_message(self) -> str:
        return f"The page is larger than {self.max_bytes / 2**20:g} MiB, so it was not read."

    def _require_fetchable(self, url: httpx.URL, visited: list[httpx.URL]) -> None:
        if len(visited) > self.max_redirects:
            raise ToolError(f"The page redirects more than {self.max_redirects} times.")
        require_web_url(url, str(url))
        if self.blocklist.is_blocked(str(url)):
            raise ToolError(BLOCKED_MESSAGE)

    async def _fetch_once(
        self, client: httpx.AsyncClient, url: httpx.URL
    ) -> CachedResponse | httpx.URL:
        """Send one request, and return the page or the URL that it redirects to."""
        async with client.stream("GET", url) as response:
            location = response.extensions.get(_LOCATION_EXTENSION)
            if response.status_code in _REDIRECTS and location is not None:
                return _resolve_redirect(url, location)
            if response.status_code in (404, 410):
                raise ToolError(f"There is no such page (status {response.status_code}).")
            if response.status_code != 200:
                raise ToolError(f"The server refused the page (status {response.status_code}).")
            content = await self._read_content(response)
        return CachedResponse(
            status=200, kind=response.headers.get("content-type", ""), content=content
        )

    async def _read_content(self, response: httpx.Response) -> bytes:
        """Read and decompress the body chunk by chunk, up to the limit."""
        content = bytearray()
        async for chunk in decompress_response(response):
            content += chunk
            if len(content) > self.max_bytes:
                raise ToolError(self._too_large_message)
        return bytes(content)


async def _move_location(response: httpx.Response) -> None:
    """Hide a redirect from httpx, which would build a request from it immediately and fail at
    invalid URLs, for which `_resolve_redirect` has an error message."""
    response.extensions[_LOCATION_EXTENSION] = response.headers.pop("location", None)


def _resolve_redirect(url: httpx.URL, location: str) -> httpx.URL:
    try:
        return url.join(location).copy_with(fragment=None)
    except (httpx.InvalidURL, ValueError) as error:
        raise ToolError(
            f"The page redirects to '{location[:100]}', which is not an address of a web page."
        ) from error


def replace_lone_surrogates(text: str) -> str:
    """Replace lone surrogates in a text, which JSON can contain and requests cannot."""
    return text.encode(errors="replace").decode()


def parse_url(text: str) -> httpx.URL:
    """Parse a URL written by the model, without its fragment. Raises ToolError if it is invalid."""
    text = replace_lone_surrogates(text).strip()
    try:
        url = httpx.URL(text if "://" in text else f"https://{text}").copy_with(fragment=None)
    except (httpx.InvalidURL, ValueError) as error:
        raise ToolError(_make_bad_url_message(text)) from error
    require_web_url(url, text)
    return url


def require_web_url(url: httpx.URL, text: str) -> None:
    """Raise ToolError for a URL, written as `text`, that is not the URL of a web page."""
    if url.scheme not in ("http", "https") or not url.host:
        raise ToolError(_make_bad_url_message(text))
    if url.userinfo:
        raise ToolError("Addresses with a name and a password are not read.")


def _make_bad_url_message(text: str) -> str:
    return f"'{text[:100]}' is not an address of a web page; it begins with http:// or https://."


def _make_non_public_message(url: httpx.URL) -> str:
    return f"{url.host} is not on the public internet, so it was not asked."


def _describe_error(error: httpx.HTTPError, url: httpx.URL) -> str:
    match error:
        case NonPublicAddressError():
            return _make_non_public_message(url)
        case httpx.ConnectError():
            return f"{url.host} cannot be reached."
        case httpx.DecodingError():
            return f"The page is damaged: {error}."
        case httpx.RemoteProtocolError() | httpx.ReadError():
            return f"{url.host} did not answer as a web server does, or ended too early."
    return f"The page could not be read ({type(error).__name__})."
