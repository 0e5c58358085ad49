"""Requests go only to public addresses, regardless of the answers of name resolution."""

import socket

import httpx
import pytest
from web_parts import crawler, failure, use

from bad_servers import answers, raw_server, resets
from fieldcraft.extensions.web.fetch import is_allowed, is_public, parse_allowed_host
from fieldcraft.types import UserError

pytest.importorskip("trafilatura", reason="needs the extra web")

PAGE = answers(b"<html><body><p>A secret of the intranet.</p></body></html>", "text/html")


# From the registries of special addresses: the first and last address of each range. Ranges that
# embed IPv4 addresses are represented by one that embeds a private address.
NOT_PUBLIC = [
    *("0.0.0.0", "0.255.255.255", "10.0.0.0", "10.255.255.255", "100.64.0.0", "100.127.255.255"),
    *("127.0.0.0", "127.0.0.1", "127.255.255.255", "169.254.0.0", "169.254.169.254"),
    *("169.254.255.255", "172.16.0.0", "172.31.255.255", "192.0.0.0", "192.0.0.8"),
    *("192.0.0.170", "192.0.0.255", "192.0.2.0", "192.0.2.255", "192.88.99.0", "192.88.99.255"),
    *("192.168.0.0", "192.168.255.255", "198.18.0.0", "198.19.255.255", "198.51.100.0"),
    *("198.51.100.255", "203.0.113.0", "203.0.113.255", "224.0.0.0", "239.255.255.255"),
    *("240.0.0.0", "255.255.255.254", "255.255.255.255"),
    *("::", "::1", "::ffff:0.0.0.0", "::ffff:10.0.0.1", "::ffff:127.0.0.1", "::127.0.0.1"),
    *("::ffff:0:7f00:1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::1", "100::", "100::1"),
    *("100:0:0:1::1", "200::1", "400::1", "1000::1", "1fff:ffff::1", "2001::", "2001:0:1::1"),
    *("2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:2::1", "2001:10::1", "2001:20::1"),
    *("2001:30::1", "2001:1ff:ffff::1", "2001:db8::", "2001:db8:ffff::1", "2002:7f00:1::"),
    *("2002:a00:1::1", "2002:c0a8:101::1", "3fff::1", "3fff:fff:ffff::1", "4000::1", "5f00::1"),
    *("8000::1", "fc00::1", "fdff:ffff::1", "fe00::1", "fe80::1", "fe80::1%2", "febf:ffff::1"),
    *("fec0::1", "feff:ffff::1", "ff00::1", "ff02::1", "ff0e::1", "ffff:ffff::1"),
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_addresses_that_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *("1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0"),
        *("172.15.255.255", "172.32.0.0", "192.0.1.0", "223.255.255.255", "::ffff:8.8.8.8"),
        *("64:ff9b::808:808", "2001:200::1", "2001:db7::1", "2001:db9::1", "2002:808:808::1"),
        *("2001:4860:4860::8888", "2606:4700::1111", "2a00::1", "3ffe::1"),
    ],
)
def test_public_addresses(address):
    assert is_public(address)


@pytest.fixture
def names(monkeypatch):
    """Replace the resolver: name -> lists of addresses, one list for each lookup."""
    known, real = {}, socket.getaddrinfo

    def look_up(host, port, *more, **settings):
        if host not in known:
            return real(host, port, *more, **settings)
        found = known[host].pop(0) if len(known[host]) > 1 else known[host][0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in found]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


@pytest.mark.parametrize("found", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["192.168.0.7"]])
def test_a_name_with_a_private_address_is_refused_unasked(names, found):
    with raw_server(PAGE) as (url, requests):
        names["inside.example"] = [found]
        error = failure(crawler(), url=url.replace("127.0.0.1", "inside.example"))
    assert str(error) == "inside.example is not on the public internet, so it was not asked."
    assert requests == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]"])
def test_the_loopback_in_any_writing_is_refused(host):
    with raw_server(PAGE) as (url, requests):
        error = failure(crawler(allow_hosts=[]), url=url.replace("127.0.0.1", host))
    assert str(error).endswith("is not on the public internet, so it was not asked.")
    assert requests == []


def test_a_redirect_to_a_private_address_is_refused(names):
    with raw_server(PAGE) as (inside, requests):
        names["inside.example"] = [["127.0.0.1"]]
        target = inside.replace("127.0.0.1", "inside.example")
        head = f"HTTP/1.1 302 Found\r\nlocation: {target}\r\ncontent-length: 0\r\n\r\n"
        with raw_server(lambda c: c.sendall(head.encode())) as (outside, _):
            error = failure(crawler(), url=outside)
    assert str(error) == "inside.example is not on the public internet, so it was not asked."
    assert requests == []


def test_the_address_that_was_checked_is_the_one_that_is_asked(names, monkeypatch):
    """A name that changes its address after the check is looked up only once."""
    with raw_server(PAGE) as (url, requests):
        names["swap.example"] = [["127.0.0.1"], ["192.0.2.1"]]
        monkeypatch.setattr("fieldcraft.extensions.web.fetch.is_public", lambda a: a == "127.0.0.1")
        [text] = use(crawler(), {"url": url.replace("127.0.0.1", "swap.example") + "/a"})
    assert "A secret" in text
    assert len(names["swap.example"]) == 1
    port = httpx.URL(url).port
    assert requests[0].startswith(b"GET /a HTTP/1.1\r\n")
    assert f"host: swap.example:{port}\r\n".encode() in requests[0].lower()


def test_the_next_address_is_asked_where_one_does_not_answer(names):
    with raw_server(PAGE) as (url, _):
        names["two.example"] = [["127.0.0.2", "127.0.0.1"]]  # the first does not accept connections
        tool = crawler(allow_hosts=["two.example"])
        assert "A secret" in use(tool, {"url": url.replace("127.0.0.1", "two.example")})[0]


def test_a_host_is_allowed_by_name_or_by_name_and_port():
    with raw_server(PAGE) as (url, _):
        port = httpx.URL(url).port
        for allowed in ("127.0.0.1", f"127.0.0.1:{port}", f"127.0.0.1:{port}/"):
            assert "A secret" in use(crawler(allow_hosts=[allowed]), {"url": url})[0]
        assert "not on the public" in str(failure(crawler(allow_hosts=["127.0.0.1:1"]), url=url))


@pytest.mark.parametrize("written", ["LocalHost", "[::1]", "Bücher.example:8000", "::1"])
def test_allowed_hosts_are_compared_in_one_writing(written):
    address = f"http://{'[::1]' if written == '::1' else written.lower()}/"
    assert is_allowed(httpx.URL(address), [parse_allowed_host(written)])


@pytest.mark.parametrize("text", ["http://localhost", "a/b", "*.a", "a b", "", "u@a", "a:99999"])
def test_an_allowed_host_that_is_none_is_a_mistake(text):
    with pytest.raises(UserError, match="of allow_hosts is no host: write HOST or HOST:PORT"):
        crawler(allow_hosts=[text])


def test_a_certificate_must_be_for_the_name(names, monkeypatch):
    """The first message of TLS names the host, not the address of the connection."""
    with raw_server(resets) as (url, requests):
        names["swap.example"] = [["127.0.0.1"]]
        monkeypatch.setattr("fieldcraft.extensions.web.fetch.is_public", lambda _: True)
        failure(crawler(), url=f"https://swap.example:{httpx.URL(url).port}/")
    assert requests[0][:1] == b"\x16"  # a handshake
    assert b"swap.example" in requests[0]
