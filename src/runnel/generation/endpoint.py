"""Language models that are asked: behind an endpoint with OpenAI's chat interface (`Endpoint`), or
on this machine (`LocalModel`). Both answer messages with a `Reply`.
"""

import json
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from runnel.errors import EndpointError, InputError, needing
from runnel.redaction import WORD, hide, redact, secrets_of, showable, user_of
from runnel.text.dialogue import Message, dialogue

if TYPE_CHECKING:
    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletion

LOCAL = "local:"  # the prefix of a model's name that is given instead of the URL of an endpoint

# Bounds of an answer, above what honest endpoints need: one token a second of a slow processor, 400
# bytes a token in a stream, 25 bytes a number of a vector.
_SECONDS_PER_TOKEN = 2.0
_BYTES_PER_TOKEN = 4096
_CHARACTERS_PER_TOKEN = 64
_BYTES_PER_VECTOR = 16_384 * 32  # numbers of a vector, bytes of a number
_SPARE_BYTES = 1 << 20
_SPARE_CHARACTERS = 10_000
_SHOWN_CHARACTERS = 300  # the most characters of an endpoint's message that an error shows


@dataclass(frozen=True)
class Reply:
    """A language model's reply."""

    raw: str  # the whole reply, with the reasoning before it, as it is stored
    finish: str  # "stop", or "length" if it reached `max_tokens`
    prompt_tokens: int | None = None  # counted by the endpoint; None if it does not count
    completion_tokens: int | None = None

    @property
    def text(self) -> str:
        return without_reasoning(self.raw)


class Endpoint:
    """A client of an endpoint.

    Requests that fail because the endpoint is busy or not reached are repeated, after the time it
    asks for or else with growing pauses. A streamed reply is not repeated after its first text.
    Redirects are not followed: they would take the prompt and the key elsewhere. `max_tokens`
    bounds a reply in bytes, characters and time, even if the endpoint ignores it. The key and the
    secrets of the URL are in no error, in no reply and not in the attribute `url`, even if the
    endpoint repeats them.

    Args:
        url: up to and including the version, e.g. http://127.0.0.1:8080/v1; default:
            $OPENAI_BASE_URL, or with a key OpenAI's. The user and password that it may have are
            sent instead of the key.
        model: its name there; default: the only one that the endpoint lists.
        key: default: $OPENAI_API_KEY. Local endpoints need none.
        timeout_s: the longest wait for a reply, or between two parts of a streamed one; a language
            model on a processor takes minutes.
        retries: how often to repeat a request.

    Raises:
        InputError: the URL is none, or there is neither a URL nor a key.
        MissingDependency: the package openai is missing.
    """

    def __init__(
        self,
        url: str | None = None,
        model: str | None = None,
        *,
        key: str | None = None,
        timeout_s: float = 600.0,
        retries: int = 5,
    ) -> None:
        key = key or os.environ.get("OPENAI_API_KEY")
        address = (
            url or os.environ.get("OPENAI_BASE_URL") or ("https://api.openai.com/v1" if key else "")
        )
        self._secrets = [*secrets_of(address), key or ""]
        self._redact = partial(redact, secrets=self._secrets)
        self.url = self._redact(address)
        if not address.startswith(("http://", "https://")):
            raise InputError(
                f"the endpoint of the language model is {self.url!r}; give --llm or"
                " $OPENAI_BASE_URL a URL such as http://127.0.0.1:8080/v1, or set $OPENAI_API_KEY"
                " for OpenAI's"
            )
        with needing("language models need the package openai", "answers"):
            import openai
        user_info = user_of(address)  # "user:password" of the URL
        user, _, password = user_info.partition(":")
        login = (unquote(user), unquote(password)) if user_info else None
        # httpx logs addresses
        base, _, query = address.replace(f"//{user_info}@", "//", 1).partition("?")
        http = openai.DefaultHttpxClient(
            timeout=timeout_s,
            auth=login,
            event_hooks={"response": [partial(_guard, timeout_s=timeout_s)]},
        )
        self.client = openai.OpenAI(
            base_url=base,
            default_query=dict(parse_qsl(query)),
            api_key=key or "none",
            timeout=timeout_s,
            max_retries=retries,
            http_client=http,
        )
        weakref.finalize(self.client, http.close)
        self._model = model

    @cached_property
    def model(self) -> str:
        """Name of the model; without one an EndpointError if the endpoint lists none or several."""
        if self._model is not None:
            return self._model
        with self._errors(
            "did not list its models",
            "; name one with --llm-model, or correct the URL, which ends as in /v1",
        ):
            names = self._list_models()
        if len(names) != 1:
            listed = self._short(", ".join(names[:10])) or "none"
            raise EndpointError(
                f"{self.url} lists {len(names)} models ({listed}); choose one by its name, with"
                " --llm-model"
            )
        return names[0]

    def _list_models(self) -> list[str]:
        """Return the names of the endpoint's models. It is asked again only if it is busy: it may
        not be running at all.
        """
        import openai

        try:
            return [model.id for model in self.client.with_options(max_retries=0).models.list()]
        except openai.APIStatusError:
            return [model.id for model in self.client.models.list()]

    def complete(
        self,
        messages: list[Message],
        *,
        max_tokens: int,
        on_text: Callable[[str], None] | None = None,
    ) -> Reply:
        """Return the model's reply, at temperature 0.

        Args:
            max_tokens: the most tokens of the reply.
            on_text: called with each part of the text as it arrives; the reply is then streamed.

        Raises:
            EndpointError: the endpoint cannot be reached, refuses the request, redirects it,
                answers something else, ends a stream early, or sends more than `max_tokens` can be.
        """
        limit = "max_completion_tokens" if "api.openai.com" in self.url else "max_tokens"
        options: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            limit: max_tokens,
            "temperature": 0.0,
        }
        if on_text is None:
            with self._errors("did not answer"):
                return self._harmless(
                    _reply_of(self.client.chat.completions.create(**options), max_tokens)
                )
        for part in self._stream(options, max_tokens):
            if isinstance(part, Reply):
                return self._harmless(part)
            on_text(part)
        raise AssertionError("a stream ends with the reply, or with an error")

    def embed(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of texts, in their order.

        Raises EndpointError as `complete` does; an answer may have 16,384 numbers a text, and take
        `timeout_s` after its first byte.
        """
        with self._errors("did not give embeddings"):
            rows = self.client.embeddings.create(
                model=self.model, input=texts, encoding_format="float"
            ).data
            vectors = {row.index: row.embedding for row in rows}
            if (
                sorted(vectors) != list(range(len(texts)))
                or len({len(vector) for vector in vectors.values()}) > 1
            ):
                raise ValueError(
                    f"{len(rows)} embeddings; expected one for each of {len(texts)} texts, of one"
                    " width"
                )
            return [vectors[number] for number in range(len(texts))]

    def _stream(self, options: dict[str, Any], max_tokens: int) -> Iterator[str | Reply]:
        """Yield the parts of a streamed reply, then the whole."""
        from openai.types.chat import ChatCompletion

        texts: list[str] = []
        length = 0
        finish: str | None = None
        usage: CompletionUsage | None = None
        options |= {"stream": True, "stream_options": {"include_usage": True}}
        with (
            self._errors("did not answer"),
            self.client.chat.completions.create(**options) as stream,
        ):
            is_json = stream.response.headers.get("content-type", "").startswith("application/json")
            if is_json and stream.response.read().lstrip().startswith(b"{"):  # no stream was sent
                reply = _reply_of(ChatCompletion.construct(**stream.response.json()), max_tokens)
                yield from (reply.raw, reply)
                return
            for chunk in stream:
                usage = chunk.usage or usage
                for choice in chunk.choices[:1]:
                    finish = choice.finish_reason or finish
                    if choice.delta.content:
                        texts.append(choice.delta.content)
                        length += len(texts[-1])
                        _expect_bounded(length, max_tokens)
                        yield texts[-1]
            if finish is None:
                raise ValueError(f"the reply ended early, after {length:,} characters")
            yield _reply("".join(texts), finish, usage)

    @contextmanager
    def _errors(self, what: str, hint: str = "") -> Iterator[None]:
        """Turn every failure of a request into an `EndpointError`, whose message says what the
        endpoint did.
        """
        import openai

        try:
            yield
        except Exception as error:
            # a body of another shape, or a broken one, fails in many ways inside the client and
            # here
            cause = error.__cause__ or error
            if isinstance(error, openai.APIStatusError):
                happened = f"{what}: {error.status_code}: {self._short(error.message)}{hint}"
            elif isinstance(error, openai.APITimeoutError):
                happened = f"{what} in time; is it busy, or its model being loaded?"
            elif isinstance(error, openai.APIConnectionError):
                # the error of httpx or httpx2, whichever the version of openai uses
                unreached = type(cause).__name__ == "ConnectError"
                failed = "cannot be reached" if unreached else "broke the connection"
                happened = f"{failed} ({self._short(str(cause))}); is the endpoint running?"
            else:
                happened = f"{what} as expected of a chat endpoint: {self._short(str(error))}{hint}"
            raise EndpointError(f"{self.url} {happened}") from showable(error, self._redact)

    def _short(self, text: str) -> str:
        """Return the beginning of what the endpoint wrote, without secrets: they are hidden first,
        so that none is cut.
        """
        text = " ".join(self._redact(text).split())
        return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."

    def _harmless(self, reply: Reply) -> Reply:
        """Return a reply, which will be stored and quoted, without secrets that are no ordinary
        words.
        """
        return replace(
            reply,
            raw=hide(reply.raw, self._secrets, WORD),
            finish=hide(reply.finish, self._secrets, WORD),
        )


class LocalModel:
    """A `LanguageModel` that answers as an `Endpoint` does, one request after another, to a plain
    dialogue without a template.
    """

    def __init__(self, name: str | Path, dtype: str = "auto", device: str = "auto") -> None:
        from runnel.models.recurrent.language_model import LanguageModel  # imports torch

        self.language_model = LanguageModel.load(name, dtype, device)
        self.url = f"{LOCAL}{name}"
        self.model = f"{name}@{self.language_model.backbone.fingerprint()[:12]}"
        self._lock = Lock()

    def complete(
        self,
        messages: list[Message],
        *,
        max_tokens: int,
        on_text: Callable[[str], None] | None = None,
    ) -> Reply:
        """Return the model's reply, at each place the most likely token; `on_text` is called once,
        with the whole text.
        """
        with self._lock:
            written = self.language_model.generate(dialogue(messages), max_tokens=max_tokens)
        if on_text is not None:
            on_text(written.text)
        # the state has read the prompt and the reply
        read = int(written.state.tokens[0]) - len(written.ids)
        return Reply(written.text, written.finish, read, len(written.ids))


LanguageModelClient = Endpoint | LocalModel


def _guard(response: Any, timeout_s: float) -> None:
    """Refuse a redirect, and bound the body of an answer, which is read with `iter_bytes` whether
    it is streamed or not: by the tokens or the vectors that the request asks for; headers and
    spaces have bytes of their own.
    """
    if response.has_redirect_location:
        raise ValueError(
            "it redirects, where nothing was sent; give that URL if you trust it:"
            f" {response.headers['location']!r}"
        )
    # the list of models is asked for without a body
    asked = json.loads(response.request.content or "{}")
    tokens = asked.get("max_tokens") or asked.get("max_completion_tokens") or 0
    most = tokens * _BYTES_PER_TOKEN + len(asked.get("input", ())) * _BYTES_PER_VECTOR
    seconds = timeout_s + tokens * _SECONDS_PER_TOKEN
    response.iter_bytes = partial(_bounded, response.iter_bytes, _SPARE_BYTES + most, seconds)


def _bounded(
    read: Callable[[int | None], Iterator[bytes]],
    most: int,
    seconds: float,
    chunk_size: int | None = None,
) -> Iterator[bytes]:
    """Yield what `read` yields; raise if it is more than `most` bytes, or takes more seconds."""
    end = time.monotonic() + seconds
    size = 0
    for part in read(chunk_size):
        size += len(part)
        if size > most or time.monotonic() > end:
            raise ValueError(
                f"its answer has more than {most:,} bytes, or had not ended after {seconds:,.0f} s"
            )
        yield part


def _expect_bounded(characters: int, max_tokens: int) -> None:
    limit = _SPARE_CHARACTERS + max_tokens * _CHARACTERS_PER_TOKEN
    if characters > limit:
        raise ValueError(
            f"the reply has more than {limit:,} characters; it was to have {max_tokens:,} tokens at"
            " most"
        )


def _reply_of(completion: "ChatCompletion", max_tokens: int) -> Reply:
    """Return the reply in a completion of the package openai; an error of any kind means that it
    has none.
    """
    choice = next(iter(completion.choices or ()), None)
    if choice is None or not isinstance(choice.message.content, str):
        raise ValueError("the reply has no text")
    _expect_bounded(len(choice.message.content), max_tokens)
    return _reply(choice.message.content, choice.finish_reason, completion.usage)


def without_reasoning(text: str) -> str:
    """Return what follows the <think>...</think> that a reply, or the first part of one, begins
    with; "" while it may go on.

    The opening tag may be missing: the templates of some models write it.
    """
    reasoning, closed, rest = text.partition("</think>")
    head = reasoning.lstrip()[: len("<think>")]
    if closed and (head == "<think>" or "<think>" not in reasoning):
        return rest.lstrip()
    return "" if head == "<think>" else text


def _reply(text: str, finish: str | None, usage: "CompletionUsage | None") -> Reply:
    finish = finish or "stop"
    if usage is None:
        return Reply(text, finish)
    return Reply(text, finish, usage.prompt_tokens, usage.completion_tokens)
