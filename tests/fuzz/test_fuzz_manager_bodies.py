"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is the body of a join, a report or a leave, as bytes. Each gets an answer below 500, and no body grows the
overlay beyond the federators that joined. Schemathesis tests by the interface's own description
(tests/topology/test_openapi.py); this test does not.
"""

import asyncio
import json
from pathlib import Path

from hypothesis import strategies as st
from tests.fuzz.fuzzing import fuzz
from tests.topology.simulated import running

ADDRESSES = st.sampled_from(["tcp://b1:1883", "mqtt://[::1]:1", "ssl://b2:8883/", "tcp://b1:1883@x"])
JOINS = st.fixed_dictionaries(
    {"ip": ADDRESSES}, optional={"link": ADDRESSES, "id": st.integers(0, 3), "token": st.just("hanse-00000000-x")}
).map(lambda body: b"join " + json.dumps(body).encode())
REPORTS = st.fixed_dictionaries(
    {"ip": ADDRESSES, "epoch": st.integers(0, 9)},
    optional={"neighbors": st.just([{"id": 1, "ip": "tcp://b1:1883"}]), "lost": st.just([1]), "groups": st.just([])},
).map(lambda body: b"federators/0/report " + json.dumps(body).encode())
LEAVES = st.just(b'leave {"id": 1}')


def test_the_manager_answers_any_body(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        scene = running(tmp_path)
        here = runner.run(scene.__aenter__())
        runner.run(here.join(0))

        async def ask(data: bytes) -> None:
            path, _, body = data.partition(b" ")
            where = path.decode("ascii", "replace") if path in (b"join", b"leave") else "federators/0/report"
            headers = {"content-type": "application/json"}
            answer = await here.client.post(f"/api/v1/{where}", content=body, headers=headers)
            assert answer.status_code < 500, answer.text
            assert answer.status_code == 204 or answer.headers["content-type"].startswith("application/")
            assert len((await here.get("/api/v1/topology"))["federators"]) < 1_000

        try:
            fuzz("manager_bodies", st.one_of(JOINS, REPORTS, LEAVES), lambda data: runner.run(ask(data)), is_slow=True)
        finally:
            runner.run(scene.__aexit__(None, None, None))
