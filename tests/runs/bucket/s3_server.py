"""A server on this machine that speaks S3, where it is installed: pip install s3fs 'moto[s3]' flask flask-cors."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture
def s3(monkeypatch) -> Iterator[str]:
    """Give the URL of an empty bucket; keys and the server's address are in the environment."""
    pytest.importorskip("s3fs")
    pytest.importorskip("flask_cors")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0)
    import s3fs

    server.start()
    host, port = server.get_host_and_port()
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    bucket = f"velodrome-{secrets.token_hex(4)}"  # the server's content outlives it
    s3fs.S3FileSystem().mkdir(bucket)
    yield f"s3://{bucket}/runs"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()
