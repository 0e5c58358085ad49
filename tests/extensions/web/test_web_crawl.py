"""`crawl_page` over the loopback interface: the text of a page, or a message if it has none."""

import asyncio
import gzip
import io
import socket
import sys
import tracemalloc
import zlib

import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from web_parts import TASK, CountingSite, crawler, failure, use

from bad_servers import OF_AN_ANSWER, OF_HEADERS, answers, drips, raw_server, redirects, resets
from chat_server import answering, completion
from fieldcraft.extensions.web import page_text
from fieldcraft.extensions.web.crawl import ALREADY_READ_MESSAGE, split_text
from fieldcraft.extensions.web.page_text import PageText
from fieldcraft.tools.factory import make_tool
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import ArgumentError, ToolError, ToolUnavailableError, UserError
from virtual_time import Clock, virtually

pytest.importorskip("trafilatura", reason="needs the extra web")

ARTICLE = (
    "<html><head><title>Ada</title><script>var a = 'no text';</script></head><body>"
    "<nav><a href='/'>Home</a></nav><article><h1>Ada Lind</h1>"
    + "".join(f"<p>Ada Lind wrote the book {i}, and people read it with joy.</p>" for i in range(9))
    + "<p>See <a href='../bo#life'>Bo Berg</a> and <a href='mailto:a@b'>write</a>.</p></article>"
    "</body></html>"
)


def html(body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n" + more + b"\r\n" + body


def send(raw: bytes):
    """Make a server that sends these bytes and closes the connection."""

    def behave(connection: socket.socket) -> None:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass

    return behave


def test_a_page_is_its_main_text_and_its_links():
    with raw_server(answers(ARTICLE.encode(), "text/html; charset=utf-8")) as (url, requests):
        [text] = use(crawler(), {"url": f"{url}/wiki/ada#top"})
    assert text.startswith(f"{url}/wiki/ada\n\n")
    assert "Ada Lind wrote the book 8, and people read it with joy." in text
    assert "no text" not in text
    assert text.endswith(f"\n\nLinks:\n[Home]({url}/)\n[Bo Berg]({url}/bo)")
    assert b"user-agent: fieldcraft/" in requests[0].lower()


def test_a_long_page_comes_in_parts():
    with raw_server(answers("".join(f"line {i}\n" for i in range(90)).encode(), "text/plain")) as (
        url,
        _,
    ):
        tool = crawler(chunk_characters=300)
        first, last = use(tool, {"url": url}, {"url": url, "part": 3})
        error = failure(tool, url=url, part=4)
    assert first.startswith(f"{url} (part 1 of 3)\n\nline 0\n")
    assert last.rstrip().endswith("line 89")
    assert str(error) == "The page has 3 parts, so there is no part 4."


def test_parts_lose_nothing():
    text = "".join(f"{'x' * (i % 37)} {i}\n" for i in range(400))
    parts = split_text(text, 500)
    assert "\n".join(parts).split() == text.split()
    assert max(map(len, parts)) <= 500
    assert split_text("", 5) == [""]
    assert split_text("a" * 12, 5) == ["aaaaa", "aaaaa", "aa"]


def test_a_repeated_page_is_not_read_again_in_a_rollout():
    with raw_server(answers(b"<p>Hello there.</p>", "text/html")) as (url, requests):
        tool = crawler()
        assert use(tool, {"url": url}, {"url": url})[1] == ALREADY_READ_MESSAGE
        assert len(requests) == 1
        assert "Hello there." in use(tool, {"url": url})[0]  # another rollout


def test_pdf():
    pypdf = pytest.importorskip("pypdf", reason="needs the extra web")
    from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

    writer = pypdf.PdfWriter()
    page = writer.add_blank_page(200, 200)
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
        }
    )
    fonts = DictionaryObject({NameObject("/F1"): font})
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    stream = DecodedStreamObject()
    stream.set_data(b"BT /F1 12 Tf 20 100 Td (Ada was born in Rome.) Tj ET")
    page[NameObject("/Contents")] = writer._add_object(stream)
    file = io.BytesIO()
    writer.write(file)
    with raw_server(answers(file.getvalue(), "application/pdf")) as (url, _):
        assert "Ada was born in Rome." in use(crawler(), {"url": url})[0]
    with raw_server(answers(file.getvalue()[:100], "application/pdf")) as (url, _):
        assert str(failure(crawler(), url=url)).startswith("The PDF cannot be read (")


HALF = b"content-length: 1000\r\n"
GZIPPED = gzip.compress(b"<p>Hello there, this was packed.</p>")


@pytest.mark.parametrize(
    ("behaviour", "sentence"),
    [
        (answers(b"\x89PNG\r\n" + bytes(range(256)) * 20, "text/html"), "holds no text but other"),
        (answers(b"\x89PNG", "image/png"), "holds no text but other data (image/png, 4 bytes)."),
        (answers(b"", "text/html"), "The page holds no text."),
        (answers(b"<html><body></body></html>", "text/html"), "The page holds no text."),
        (answers(b"gone", "text/html", 404), "There is no such page (status 404)."),
        (answers(b"no", "text/html", 500), "The server refused the page (status 500)."),
        (answers(b"BENCHMARK canary GUID 1", "text/plain"), "The page may not be read here."),
        (send(html(b"<p>Half", HALF)), "not answer as a web server does, or ended too early."),
        (send(html(GZIPPED[:-9], b"content-encoding: gzip\r\n")), "compressed body is truncated"),
        (send(html(b"text", b"content-encoding: gzip\r\n")), "not compressed as its header states"),
        (send(html(b"text", b"content-encoding: br\r\n")), "its encoding was not requested (br)"),
        (send(b"SSH-2.0-OpenSSH\r\n"), "not answer as a web server does, or ended too early."),
        (resets, "127.0.0.1 did not answer as a web server does, or ended too early."),
        (redirects, "The page redirects more than 5 times."),
        (send(b"HTTP/1.1 302 A\r\nlocation: ftp://a/b\r\n\r\n"), "is not an address of a web page"),
        (send(b"HTTP/1.1 302 A\r\nlocation: //a:x/\r\n\r\n"), "to '//a:x/', which is not"),
        (send(b"HTTP/1.1 302 A\r\nlocation: javascript:1\r\n\r\n"), "is not an address of a web"),
        (send(b"HTTP/1.1 302 A\r\nlocation: http://[::1\r\n\r\n"), "is not an address of a web"),
        (send(b"HTTP/1.1 302 A\r\nlocation: http://\xff\xfe/\r\n\r\n"), "cannot be reached"),
        (send(b"HTTP/1.1 302 A\r\nlocation: http://xn--a/\r\n\r\n"), "to 'http://xn--a/', which"),
        (send(b"HTTP/1.1 302 A\r\nlocation: //a:99999/\r\n\r\n"), "to '//a:99999/', which is not"),
        (send(b"HTTP/1.1 302 A\r\nlocation: mailto:a@b\r\n\r\n"), "is not an address of a web"),
        (send(b"HTTP/1.1 302 A\r\nlocation: http://%00/\r\n\r\n"), "cannot be reached"),
        (send(b"HTTP/1.1 404 A\r\nlocation: javascript:1\r\n\r\n"), "no such page"),
        (send(b"HTTP/1.1 302 A\r\nlocation: //hf.co/datasets/a\r\n\r\n"), "may not be read here."),
        (send(b"HTTP/1.1 302 A\r\nlocation: //u:p@b/\r\n\r\n"), "with a name and a password"),
    ],
)
def test_a_page_that_says_nothing_is_a_sentence(behaviour, sentence):
    with raw_server(behaviour) as (url, _):
        error = failure(crawler(), url=url)
    assert type(error) is ToolError
    assert sentence in str(error)


@pytest.mark.parametrize("beginning", [OF_AN_ANSWER, OF_HEADERS])
def test_a_slow_page_is_given_up(beginning):
    clock = Clock()
    with raw_server(drips(beginning, lambda: clock.jump(25))) as (url, _):
        error = failure(crawler(seconds=100), clock.run, url=url)
    assert str(error) == "127.0.0.1 did not answer in 100 s."


def test_a_huge_page_is_left_at_the_limit():
    sent_bytes = 0

    def streams_a_gigabyte(connection: socket.socket) -> None:
        nonlocal sent_bytes
        connection.sendall(html(b"", b"content-length: 1073741824\r\n"))
        while sent_bytes < 2**30:
            sent_bytes += connection.send(b"a" * 65536)

    with raw_server(streams_a_gigabyte) as (url, _):
        error = failure(crawler(), url=url)
    assert str(error) == "The page is larger than 4 MiB, so it was not read."
    assert sent_bytes < 2**26  # including the kernel's buffers of both sides


def test_a_small_page_that_unpacks_to_a_huge_one_is_left_at_the_limit():
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(bytes(2**22)) for _ in range(16)) + packer.flush()
    with raw_server(send(html(bomb, b"content-encoding: gzip\r\n"))) as (url, _):
        tracemalloc.start()
        error = failure(crawler(max_mb=0.5), url=url)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert str(error) == "The page is larger than 0.5 MiB, so it was not read."
    assert len(bomb) < 2**17
    assert most < 2**23  # of the 64 MiB of the decompressed body


def test_a_packed_page_is_unpacked():
    behind = GZIPPED + b"what follows the packed page is no part of it"
    with raw_server(send(html(behind, b"content-encoding: gzip\r\n"))) as (url, _):
        assert "Hello there, this was packed." in use(crawler(), {"url": url})[0]


def test_a_page_that_moved_is_read_where_it_is_now():
    moved = Route("/old", lambda request: RedirectResponse("/new", 301))
    new = Route("/new", lambda request: HTMLResponse("<p>Hello from the new place.</p>"))
    with serve_in_thread(Starlette(routes=[moved, new])) as url:
        [text] = use(crawler(), {"url": f"{url}/old"})
        assert text == f"{url}/new\n\nHello from the new place."
        error = failure(crawler(redirects=0), url=f"{url}/old")
    assert str(error) == "The page redirects more than 0 times."


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("", "'' is not an address of a web page; it begins with http:// or https://."),
        ("file:///etc/passwd", "'file:///etc/passwd' is not an address of a web page"),
        ("http://", "is not an address of a web page"),
        ("http://a:b@c/", "Addresses with a name and a password are not read."),
        ("http://[::1", "is not an address of a web page"),
        ("http://xn--a/", "'http://xn--a/' is not an address of a web page"),
        ("http://127.0.0.1:99999/", "is not an address of a web page"),
        ("http://no-such-name.invalid/", "no-such-name.invalid cannot be reached."),
        ("huggingface.co/datasets/a", "The page may not be read here."),
        ("https://blocked.example/", "The page may not be read here."),
    ],
)
def test_an_address_that_is_none_is_a_sentence(url, sentence):
    assert sentence in str(failure(crawler(block=["blocked.example"]), url=url))


def test_wrong_arguments_are_told():
    with pytest.raises(ArgumentError, match="Wrong arguments for crawl_page: url: Field required"):
        use(crawler(), {})


def test_a_host_is_asked_once_at_a_time():
    """The pages do not exist, because texts are read in a process, which has no virtual time."""
    site = CountingSite(404)
    tool = make_tool("crawl_page", {"interval_seconds": 0.01}, site.sites)

    async def side_by_side():
        async with tool.open(TASK) as opened:
            reads = [opened(url=f"http://engine.test/{i}") for i in range(5)]
            return await asyncio.gather(*reads, return_exceptions=True)

    assert {str(error) for error in virtually(side_by_side())} == {
        "There is no such page (status 404)."
    }
    assert (site.asked, site.most) == (5, 1)


def test_a_summary_is_about_the_question():
    app, requests = answering(completion("Ada was born in Rome."))
    with (
        serve_in_thread(app) as model,
        raw_server(answers(ARTICLE.encode(), "text/html")) as (url, _),
    ):
        tool = crawler(summary={"url": f"{model}/v1", "model": "m"})
        assert use(tool, {"url": url}) == [f"Summary of {url}\n\nAda was born in Rome."]
    user = requests[0]["messages"][1]["content"]
    assert user.startswith("Question: Where was Ada born?\n\nPage:\n")
    assert "wrote the book 3" in user


def test_a_summary_that_fails_is_no_fault_of_the_page():
    app, _ = answering(Response("no", 400))
    with (
        serve_in_thread(app) as model,
        raw_server(answers(ARTICLE.encode(), "text/html")) as (url, _),
    ):
        error = failure(crawler(summary={"url": f"{model}/v1", "model": "m"}), url=url)
    assert isinstance(error, ToolUnavailableError)
    assert str(error).startswith("No summary could be made: status 400")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"seconds": 0}, "the setting 'seconds' of the tool 'crawl_page' is wrong: it must be gr"),
        ({"second": 1}, "the tool 'crawl_page' has no setting 'second'; did you mean 'seconds'?"),
        ({"block": ["https://a"]}, "'https://a' does not match any URL: write a host"),
        (
            {"cache": "a", "record": "b"},
            "has one response cache: set only one of 'cache' and 'record'.",
        ),
        (
            {"summary": {"url": "http://a"}},
            "setting 'summary.model' of the tool 'crawl_page' is wrong: it is m",
        ),
    ],
)
def test_wrong_settings_are_a_sentence(settings, sentence):
    with pytest.raises(UserError) as error:
        crawler(**settings)
    assert sentence in str(error.value)


def test_the_text_of_a_page_is_found_once(monkeypatch):
    found = []
    pool = page_text._get_pool()
    request = pool.request

    def record_and_request(question):
        found.append(question["url"])
        return request(question)

    monkeypatch.setattr(pool, "request", record_and_request)
    texts = page_text.PageTextReader()

    def read(*page):
        return asyncio.run(texts.read(*page))

    for _ in range(3):
        assert read(b"<p>a</p>", "text/html", "http://x/1") == PageText("a")
    assert read(b"<p>b</p>", "text/html", "http://x/1") == PageText("b")  # the page has changed
    read(b"<p>a</p>", "text/html", "http://x/2")  # its links may be relative
    assert found == ["http://x/1", "http://x/1", "http://x/2"]


@pytest.fixture
def impatient(monkeypatch):
    """Limit the CPU time of a page to a moment."""
    page_text._get_pool.cache_clear()
    monkeypatch.setattr(page_text, "PAGE_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr("fieldcraft.tools.killable_pool.WALL_TIME_FACTOR", 6000)
    yield
    page_text._get_pool().close()
    page_text._get_pool.cache_clear()


def test_a_page_that_takes_too_long_is_given_up(impatient):
    """The process that reads the page is killed, and another one reads the next page."""
    long = b"<a href=x>a</a>" * 10**5
    texts = page_text.PageTextReader()
    with pytest.raises(ToolError, match=r"could not be read in 0\.05 s"):
        asyncio.run(texts.read(long, "text/html", "http://x/1"))
    assert asyncio.run(texts.read(b"short", "text/plain", "http://x/2")) == PageText("short")


@pytest.mark.parametrize("charset", ["punycode", "idna", "unicode_escape", "RAW-unicode-escape"])
def test_codecs_that_are_no_charsets_are_passed_over(charset):
    kind = f"text/plain; charset={charset}"
    assert page_text.read_page(rb"a\u0062-c", kind, "http://x/") == PageText(r"a\u0062-c")


def test_without_the_libraries_the_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pypdf", None)  # as if it were not installed
    with pytest.raises(UserError, match=r"pip install 'fieldcraft\[web\]'"):
        crawler()
