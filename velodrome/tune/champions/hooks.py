"""Who is told of a promotion: a command and a web address. One that fails undoes nothing, and is said."""

from __future__ import annotations

import json
import shlex
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from velodrome.errors import ConfigError

COMMAND_SECONDS, WEB_SECONDS = 60.0, 10.0
SHOWN = 200  # characters of what a hook answered


@dataclass(frozen=True)
class Hooks:
    """What is told of a promotion, as JSON: a command on its standard input, a web address by POST."""

    command: str | None = None
    webhook: str | None = None

    def __post_init__(self) -> None:
        try:
            if self.command is not None and not shlex.split(self.command):
                raise ValueError("it is empty")
        except ValueError as error:
            raise ConfigError(
                f"command = {self.command!r} is no command line ({error}); write it as in a shell, with quotes around "
                "words that have spaces."
            ) from error
        if self.webhook is not None:
            parts = urllib.parse.urlsplit(self.webhook)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ConfigError(f"webhook = {self.webhook!r}: needs an address such as https://host/path.")

    def tell(self, event: Mapping[str, Any]) -> Iterator[str]:
        """Tell all of them, and yield a sentence for each that failed."""
        content = json.dumps(event, ensure_ascii=False).encode()
        for name, told in (("command", self.command), ("webhook", self.webhook)):
            if told is not None and (problem := getattr(self, f"_tell_{name}")(content)):
                yield f"the {name} {told!r} was not told of it: {problem}. The promotion stands."

    def _tell_command(self, content: bytes) -> str:
        assert self.command is not None
        try:
            done = subprocess.run(
                shlex.split(self.command), input=content, capture_output=True, timeout=COMMAND_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return f"it had not ended after {COMMAND_SECONDS:g} seconds"
        except OSError as error:
            return error.strerror or str(error)
        answer = done.stderr.decode(errors="replace").strip()[-SHOWN:]
        return f"it ended with exit code {done.returncode}{f' ({answer})' if answer else ''}" if done.returncode else ""

    def _tell_webhook(self, content: bytes) -> str:
        assert self.webhook is not None
        request = urllib.request.Request(self.webhook, content, {"Content-Type": "application/json"}, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=WEB_SECONDS):
                return ""
        except urllib.error.HTTPError as error:
            return f"it answered {error.code} {error.reason}"
        except (OSError, ValueError) as error:
            return str(getattr(error, "reason", error))
