"""The token that lets somebody in: kept in a file that only its user can read, sent as a link, held as a cookie."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
from http.cookies import CookieError, SimpleCookie
from pathlib import Path

from velodrome.errors import ConfigError
from velodrome.outside.code import trusted_list
from velodrome.outside.folders import make_private_folder, why_not_private

FILE_NAME = "dashboard_token"
VARIABLE = "VELODROME_TOKEN"
LEGAL = re.compile(r"[A-Za-z0-9_-]{32,200}")
COOKIE_SECONDS = 30 * 86_400
PAGE = Path(__file__).with_name("login.html")


def token_file() -> Path:
    """Return the file of this user's token."""
    return trusted_list().with_name(FILE_NAME)


def own_token() -> str:
    """Return this user's token, which lasts, so that a browser stays logged in when the server starts again.

    The environment's VELODROME_TOKEN goes before the file.
    """
    told = os.environ.get(VARIABLE)
    if told is not None:
        if not LEGAL.fullmatch(told):
            raise ConfigError(
                f"{VARIABLE} is no token: it has 32 to 200 letters, digits, '_' and '-'. Make one: python -c 'import "
                "secrets; print(secrets.token_urlsafe(32))'"
            )
        return told
    path = token_file()
    try:
        make_private_folder(path.parent)
        if fault := why_not_private(path.parent, own=1):
            raise PermissionError(0, fault)
        return _kept(path) or _new(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: the token that keeps others out cannot be kept there ({error.strerror}). Repair it, or give one: "
            f"{VARIABLE}=… velodrome serve"
        ) from error


def _kept(path: Path) -> str | None:
    """Return the token in a file; one that others could have read or written is not used again."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with open(descriptor, encoding="ascii", errors="replace") as file:
        about = os.fstat(descriptor)
        found = file.read(4096).strip()
    private = about.st_uid == os.getuid() and not about.st_mode & 0o077
    return found if private and LEGAL.fullmatch(found) else None


def _new(path: Path) -> str:
    """Write a new token in place of what is there; of two processes, the later finds the first one's."""
    token = secrets.token_urlsafe(32)
    new = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(token + "\n")
    os.replace(new, path)
    return _kept(path) or token


class Login:
    """Who is let in, with which token, and by which cookie they are known."""

    def __init__(self, token: str, port: int, prefix: str) -> None:
        if not LEGAL.fullmatch(token):
            raise ConfigError("a server needs a token of 32 to 200 letters, digits, '_' and '-'.")
        self._token, self.prefix = token, prefix
        # Cookies are shared by all ports of a host: each server has its own name, and none shows the token itself.
        self.cookie = f"velodrome_{port}"
        self._session = base64.urlsafe_b64encode(self._keyed(b"session of " + str(port).encode())).decode().rstrip("=")
        text = PAGE.read_text(encoding="utf-8").replace('action="/login"', f'action="{prefix}/login"')
        self._before, _, self._after = text.partition("<!-- message -->")
        style = text.partition("<style>")[2].partition("</style>")[0]
        self.style_hash = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()

    def _keyed(self, text: bytes) -> bytes:
        return hmac.digest(self._token.encode(), text, "sha256")

    def is_token(self, given: str) -> bool:
        """Return whether this is the token; how long that takes tells nothing."""
        return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self._token.encode())

    def knows(self, authorization: str, cookies: str) -> str | None:
        """Return how a request is let in: by 'token', by 'cookie', or None: not at all."""
        scheme, _, given = authorization.partition(" ")
        if authorization:  # a wrong one is not saved by a cookie
            return "token" if scheme.lower() == "bearer" and self.is_token(given.strip()) else None
        try:
            held = SimpleCookie(cookies).get(self.cookie)
        except CookieError:
            return None
        if held is None:
            return None
        same = hmac.compare_digest(held.value.encode("utf-8", "surrogatepass"), self._session.encode())
        return "cookie" if same else None

    def set_cookie(self, secure: bool) -> str:
        """Return the header that lets a browser keep its log-in."""
        return self._cookie(self._session, COOKIE_SECONDS, secure)

    def clear_cookie(self, secure: bool) -> str:
        """Return the header that lets a browser forget it."""
        return self._cookie("", 0, secure)

    def _cookie(self, value: str, seconds: int, secure: bool) -> str:
        safe = "; Secure" if secure else ""
        return f"{self.cookie}={value}; Path={self.prefix}/; Max-Age={seconds}; HttpOnly; SameSite=Strict{safe}"

    def page(self, message: str = "") -> str:
        """Return the log-in page. message: one of the server's own sentences."""
        shown = f'<p role="alert">{message}</p>' if message else ""
        return f"{self._before}{shown}{self._after}"

    def entered(self, path: str) -> str:
        """Return the page after a log-in, which goes on to a path of the server's own.

        It is a page and not a redirection: a browser that came from another site would not send the new cookie along.
        """
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Velodrome</title>'
            '<link rel="icon" href="data:,">'
            f'<meta http-equiv="refresh" content="0;url={path}"></head><body><a href="{path}">Go on</a></body></html>'
        )
