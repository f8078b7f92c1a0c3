"""`chat` against a small server: pieces as they come, and one line for every way it can fail."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator

import pytest

from launcher.chat import stream_answer
from launcher.errors import LauncherError

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]
Serve = Callable[[Answer], str]


def send(handler: http.server.BaseHTTPRequestHandler, status: int, body: bytes, *, announce_bytes: int = 0) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(announce_bytes or len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def events(*payloads: str) -> bytes:
    return "".join(f"data: {payload}\n\n" for payload in payloads).encode()


def delta(text: str | None) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text} if text else {}}]})


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers = []

    def start(answer: Answer) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                send(self, 200, json.dumps({"data": [{"id": "m"}]}).encode())

            def do_POST(self) -> None:
                sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert (sent["model"], sent["stream"], sent["messages"][0]["content"]) == ("m", True, "hi")
                assert self.path == "/v1/chat/completions"
                answer(self)

            def log_message(self, *_: object) -> None:
                return

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(url: str) -> list[str]:
    pieces: list[str] = []
    stream_answer(url, "hi", pieces.append)
    return pieces


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_pieces_arrive_in_order(serve: Serve, suffix: str) -> None:
    body = b": keep-alive\n\n" + events(delta("a"), delta("é\n"), delta(None), '{"choices":[]}', "[DONE]")
    assert ask(serve(lambda handler: send(handler, 200, body)) + suffix) == ["a", "é\n"]


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (503, b'{"error":{"message":"engine is loading"}}', "refused with status 503: engine is loading"),
        (500, b"<html>", "refused with status 500: Internal Server Error"),
        (200, events(delta("a"), '{"error":{"message":"the engine died"}}'), "the engine died"),
        (200, events(delta("a")), "the answer was cut off: the server closed the connection"),
        (200, events("not json"), "the answer is not JSON: is this an OpenAI-compatible server?"),
    ],
)
def test_refusals_are_one_line(serve: Serve, status: int, body: bytes, message: str) -> None:
    url = serve(lambda handler: send(handler, status, body))
    with pytest.raises(LauncherError) as caught:
        ask(url)
    assert caught.value.message == message


def test_a_connection_cut_mid_answer_is_one_line(serve: Serve) -> None:
    def cut(handler: http.server.BaseHTTPRequestHandler) -> None:
        send(handler, 200, events(delta("a")), announce_bytes=1000)
        handler.close_connection = True

    with pytest.raises(LauncherError, match=r"cut off|cannot talk to"):
        ask(serve(cut))


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:99999", "http://x:0"])
def test_bad_urls_are_refused(url: str) -> None:
    with pytest.raises(LauncherError, match="expected http://HOST:PORT") as caught:
        ask(url)
    assert caught.value.exit_code == 2


def test_nobody_there() -> None:
    with pytest.raises(LauncherError, match=r"cannot talk to http://127.0.0.1:1: Connection refused; is it running\?"):
        ask("http://127.0.0.1:1")


def test_https_to_a_plain_server_is_a_plain_sentence(serve: Serve) -> None:
    url = serve(lambda handler: send(handler, 200, b"")).replace("http://", "https://")
    with pytest.raises(LauncherError) as refused:
        stream_answer(url, "hi", lambda _piece: None)
    plain = url.replace("https://", "http://")
    assert refused.value.message == f"{url} does not speak https; try --url {plain}"
