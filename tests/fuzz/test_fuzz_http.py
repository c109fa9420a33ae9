"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is a request to the federator's own pages. The answer to any request is complete, and repeats nothing of it.
"""

from hypothesis import strategies as st
from tests.fuzz.fuzzing import assert_linear, fuzz

from hanse.federator.http import HttpServer

SECRET = b'{"id": 7}'
METHODS = st.sampled_from(["GET", "HEAD", "POST", "OPTIONS"])
PATHS = st.sampled_from(["/healthz", "/metrics", "/", "/healthz?x=<script>", "/../etc", "/%2e%2e/"])
HEADERS = st.sampled_from(["Host: x", "Content-Length: 5", "Transfer-Encoding: chunked", "X: ü", "Cookie: c", "A:"])
HEADS = st.builds(
    lambda method, path, headers: "\r\n".join([f"{method} {path} HTTP/1.1", "Host: h", *headers]).encode("latin-1"),
    METHODS,
    PATHS,
    st.lists(HEADERS, max_size=3),
)


def take(data: bytes) -> None:
    server = HttpServer({"/healthz": lambda: (200, "application/json", SECRET)})
    answer = server.answer(data)
    head, end, body = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    status = int(lines[0].split(b" ")[1])
    assert end
    assert lines[0].startswith(b"HTTP/1.1 ")
    assert server.answered == {status: 1}
    assert b"Connection: close" in lines
    length = int(next(line for line in lines if line.startswith(b"Content-Length: ")).split(b" ")[1])
    assert len(body) in (length, 0)
    assert status < 500 or status == 505
    assert status != 200 or body in (SECRET, b"")
    assert b"<script>" not in answer


def test_the_answer_to_any_request_is_complete() -> None:
    fuzz("http", HEADS, take)


def test_a_head_of_a_megabyte_is_read_in_linear_time() -> None:
    assert_linear(lambda size: b"GET /" + b"x" * size + b" HTTP/1.1\r\nHost: h", take)
    assert_linear(lambda size: b"GET / HTTP/1.1\r\nHost: h" + b"\r\nA: b" * (size // 6), take)
    assert_linear(lambda size: b" " * size, take)
