"""Texts without passwords and keys: secrets in URLs, in the environment, and secrets that a caller
knows.
"""

import os
import re
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterable
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "***"
SHORT = 4  # characters of the shortest secret that is searched for: shorter ones are parts of words
# Characters of the shortest secret that cannot be an ordinary word, such as "none", which people
# give as the key of an endpoint without keys.
WORD = 8

# All repetitions are bounded or cannot overlap, so that no text takes long. CONTAINER@ACCOUNT of
# Azure's abfs:// is no secret. A password may have an unescaped "/": what is between a colon and an
# @ is one unless it is a port: host:80/a@b has no password.
# https://USER:PASSWORD@host: what is between :// and @
_USER = re.compile(
    r"(?<=://)(?<!abfs://)(?<!abfss://)(?:[^\s/?#]*|[^\s/?#:\[]*:(?!\d*(?:[\s/?#]|\Z))\S{0,512})@"
)
# parts of names; of "code" only the whole name
_NAMES = r"key|token|secret|pass|pwd|sig|auth|cred|(?<=[?&;])code(?==)"
# ?api_key=SECRET
_PARAMETER = re.compile(
    rf"(?i)([?&;][^\s=&;#?]{{0,64}}?(?:{_NAMES})[^\s=&;#?]{{0,64}}=)([^\s&;#'\"]+)"
)
_VARIABLE = re.compile(r"(?i)(?:key|token|secret|password)\Z")  # OPENAI_API_KEY


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text without the secrets of its URLs, of the environment and of `secrets`, as `hide`
    replaces them.
    """
    of_environment = [
        value for name, value in os.environ.items() if _VARIABLE.search(name) and len(value) >= WORD
    ]
    shown = _PARAMETER.sub(rf"\1{HIDDEN}", _USER.sub(f"{HIDDEN}@", text))
    return hide(shown, [*secrets, *of_environment])


def hide(text: str, secrets: Iterable[str], least: int = SHORT) -> str:
    """Return a text without secrets of at least `least` characters, however they are written."""
    stripped = [secret.strip() for secret in secrets]
    spelled = {form for secret in stripped if len(secret) >= least for form in _spellings(secret)}
    for form in sorted(spelled, key=len, reverse=True):
        text = text.replace(form, HIDDEN)
    return text


def user_of(url: str) -> str:
    """Return "user:password" of a URL as it is written, or "user"; "" if it has none."""
    match = _USER.search(url if "://" in url else f"://{url}")
    return match[0].removesuffix("@") if match else ""


def secrets_of(url: str) -> list[str]:
    """Return what must not be shown of a URL."""
    written = user_of(url)
    user, _, password = written.partition(":")
    return [
        written,
        f"{unquote(user)}:{unquote(password)}",
        user,
        password,
        *(value for _, value in _PARAMETER.findall(url)),
    ]


def showable(error: Exception, redact: Callable[[str], str] = redact) -> Exception | None:
    """Return an error for `raise ... from`: None if its traceback would show what `redact`
    replaces.
    """
    shown = "".join(traceback.format_exception(error))
    return error if redact(shown) == shown else None


def _spellings(secret: str) -> list[str]:
    """Return how a secret may be written: escaped for URLs and in Python, and as a Basic header has
    it.
    """
    plain = unquote(secret)
    # surrogates stand for bytes of the environment that are no UTF-8
    data = plain.encode("utf-8", "surrogatepass")
    encoded = b64encode(data).decode().rstrip("=")  # found with its padding and without it
    return [
        secret,
        plain,
        quote(data),
        quote(data, safe=""),
        quote_plus(data),
        ascii(plain)[1:-1],
        repr(plain)[1:-1],
        encoded,
    ]
