"""Download of web pages from public addresses, with limits on time, size and redirects.

Connections are made to public addresses only: a name is resolved, checked and pinned to its
address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx

from fieldcraft.config.names import replace_lone_surrogates
from fieldcraft.extensions.web.blocking import Blocklist
from fieldcraft.extensions.web.rate_limit import HostRateLimiter
from fieldcraft.extensions.web.response_cache import CachedResponse
from fieldcraft.tools.http import (
    ACCEPTED_ENCODING,
    InProcessSites,
    decompress_response,
    read_address,
    require_connectable,
)
from fieldcraft.tools.threads import run_in_thread
from fieldcraft.types import ToolError, UserError
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
        return require_connectable(url.join(location)).copy_with(fragment=None)
    except (httpx.InvalidURL, ValueError) as error:
        raise ToolError(
            f"The page redirects to '{location[:100]}', which is not an address of a web page."
        ) from error


def parse_url(text: str) -> httpx.URL:
    """Parse a URL written by the model, without its fragment. Raises ToolError if it is invalid."""
    text = replace_lone_surrogates(text).strip()
    try:
        written = httpx.URL(text if "://" in text else f"https://{text}")
        url = require_connectable(written).copy_with(fragment=None)
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


# -- connections to public addresses -----------------------------------------------------------


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: the last 32 bits are an IPv4 address
_UNICAST = ipaddress.IPv6Network("2000::/3")  # all addresses allocated for the public internet
# Networks that `ipaddress` does not know, or only in newer versions of Python.
_SPECIAL_NETWORKS = tuple(
    map(
        ipaddress.ip_network,
        (
            "192.0.0.0/24",  # RFC 6890: protocols
            "192.88.99.0/24",  # RFC 7526: relays to IPv6, withdrawn
            "2001::/23",  # RFC 2928: protocols; Teredo embeds an IPv4 address
            "3fff::/20",  # RFC 9637: documentation
        ),
    )
)


@cache
def make_ssl_context() -> ssl.SSLContext:
    """Return the shared TLS context; loading it for each client would take longer than a
    request."""
    return httpx.create_ssl_context(trust_env=False)


class NonPublicAddressError(httpx.RequestError):
    """A host has an address that is not public."""


def is_public(address: str) -> bool:
    """Return whether an address belongs to the public internet.

    Private, loopback, link-local, multicast, reserved and unspecified addresses are not public, nor
    are IPv6 addresses that embed such an IPv4 address. Raises ValueError for an invalid address.
    """
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        embedded_ip = ip.ipv4_mapped or ip.sixtofour
        if ip in _NAT64:
            embedded_ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if embedded_ip is not None:
            return is_public(str(embedded_ip))
        if ip not in _UNICAST:
            return False
    is_special = (
        ip.is_multicast or ip.is_reserved or any(ip in network for network in _SPECIAL_NETWORKS)
    )
    return ip.is_global and not is_special


def parse_allowed_host(text: str) -> str:
    """Return `HOST` or `HOST:PORT` in the form in which `is_allowed` compares it. Raises UserError
    for a text that no host matches."""
    with suppress(ValueError):
        return str(ipaddress.IPv6Address(text))
    url = read_address(f"host://{text}")  # no port is the default
    rest = (url.userinfo, url.path.strip("/"), url.query, url.fragment)
    if not url.host or any(rest) or re.search(r"[\s*]", text):
        raise UserError(f"'{text}' of allow_hosts is no host: write HOST or HOST:PORT.")
    return url.host if url.port is None else f"{url.host}:{url.port}"


def is_allowed(url: httpx.URL, allowed_hosts: Collection[str]) -> bool:
    """Return whether a host is allowed by name, regardless of its addresses. `allowed_hosts` has
    `HOST` or `HOST:PORT`."""
    return url.host in allowed_hosts or f"{url.host}:{_get_port(url)}" in allowed_hosts


class PinnedTransport(httpx.AsyncBaseTransport):
    """Transport that connects only to addresses that it has resolved and checked itself.

    The owner of a name can change its address between a check and the connection (DNS rebinding).
    So the connection is made to the checked address; the name stays in the header `host`, and the
    certificate is verified for the name. Each connection serves one request: a pooled connection
    would be reused by address, regardless of the name for which its certificate was verified.
    """

    def __init__(self, allowed_hosts: Collection[str] = ()) -> None:
        """Create a transport. `allowed_hosts` may have any address, see `is_allowed`."""
        self._allowed_hosts = allowed_hosts
        self._inner = httpx.AsyncHTTPTransport(
            trust_env=False,
            verify=make_ssl_context(),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request. Raises NonPublicAddressError, httpx.ConnectError if a name has no
        address, and other errors of httpx."""
        addresses = await _resolve(request)
        if not is_allowed(request.url, self._allowed_hosts):
            for address in addresses:
                if not is_public(address):
                    raise NonPublicAddressError(f"{request.url.host} has the address {address}")
        *others, last = addresses
        for address in others:
            try:
                return await self._send(request, address)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue  # the next address of the same host may respond
        return await self._send(request, last)

    async def _send(self, request: httpx.Request, address: str) -> httpx.Response:
        pinned = httpx.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,  # `host` is still the name
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": request.url.host},
        )
        return await self._inner.handle_async_request(pinned)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _get_port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


async def _resolve(request: httpx.Request) -> list[str]:
    """Resolve the addresses of a host, without duplicates, in the order of the resolver."""
    host, port = request.url.host, _get_port(request.url)

    def look_up() -> list[tuple[Any, ...]]:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    try:
        found = await run_in_thread(look_up)
    except (OSError, UnicodeError) as error:
        raise httpx.ConnectError("the name has no address", request=request) from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
