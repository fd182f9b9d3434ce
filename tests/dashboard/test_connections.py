"""Connections that never come to ask, and how a server ends."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def test_who_connects_and_does_not_ask_is_not_waited_for():
    """Neither one who says nothing, nor one whose request comes byte by byte, nor one who has asked before."""
    uvicorn = pytest.importorskip("uvicorn")
    from velodrome.dashboard.server import patient_protocol

    async def answer(scope, receive, send):
        if scope["path"] == "/slow":
            await asyncio.sleep(0.8)  # an answer may take longer
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def closed_after(writer, reader, dribble=b""):
        begun = time.monotonic()
        while time.monotonic() - begun < 5.0:
            writer.write(dribble)
            try:
                async with asyncio.timeout(0.1):
                    if await reader.read(1000) == b"":
                        return time.monotonic() - begun
            except TimeoutError:
                continue
            except ConnectionError:
                return time.monotonic() - begun
        return math.inf

    async def work():
        at = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(answer, http=patient_protocol(0.4), log_level="error", lifespan="off", ws="none")
        )
        serving = asyncio.create_task(server.serve([at]))
        port = at.getsockname()[1]
        silent, slow, known, patient = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        known[1].write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await known[0].readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        known[1].write(b"GET / HT")
        patient[1].write(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n")
        slow[1].write(b"GET / HTTP/1.1\r\n")
        taken = await asyncio.gather(
            closed_after(silent[1], silent[0]), closed_after(slow[1], slow[0], b"a: b\r\n"),
            closed_after(known[1], known[0]),
        )  # fmt: skip
        assert all(0.1 < seconds < 3.0 for seconds in taken), taken
        assert (await patient[0].readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        server.should_exit = True
        await serving
        at.close()

    asyncio.run(work())


@pytest.mark.slow
def test_a_server_that_is_stopped_says_so_once(tmp_path):
    """Its scheduler, whose words it passes on, leaves that to it."""
    pytest.importorskip("uvicorn")
    command = [sys.executable, "-m", "velodrome", "serve", "--no-open", "--port", "0"]
    about = {"cwd": tmp_path, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    server = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, **about)
    try:
        assert any("serving " in line for line in server.stdout), "the scheduler is there"
        time.sleep(0.5)
    finally:
        server.send_signal(signal.SIGINT)
        rest = server.communicate(timeout=60)[0]
    assert rest.count("stopping") == 1, rest
    assert server.returncode == 130


def test_a_scheduler_that_is_refused_ends_the_command(tmp_path):
    """Its words would be refused again and again, while the dashboard looks as if something were served."""
    pytest.importorskip("uvicorn")
    words = ["serve", "--no-open", "--port", "0", "--executor", "nosuch"]
    about = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 60}
    ended = subprocess.run(
        [sys.executable, "-m", "velodrome", *words], env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, **about
    )
    assert ended.returncode == 2
    assert ended.stdout.count("--executor nosuch: there are local, ray, slurm") == 1, ended.stdout
    assert "started again" not in ended.stdout
