"""The page at / and the routes that only it uses. They change with it; programs use /v1.

    page               the page; its other files are below /static (`STATIC`)
    about              the index that can be asked, if there is one
    open_file          reads a file that was dropped on the page, and keeps it in memory
    document           the text of a document of the index, or of an opened file
    answers            the sentences of such a document that answer a question
    picture            the picture of a PDF file's page, with the place of a sentence

What they return as JSON is made in `view.py`. A model that *remembers* reads a document once and
keeps the vectors of its sentences, so a question then reads only itself; any other model reads the
document again for each question. An opened file has such vectors in memory, an index has them
stored if its settings say so.

An answer that takes the model long is streamed as lines of JSON: {"done": 12, "total": 345} in
tokens, then {"result": ...} or {"error": "..."}.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import FileResponse, Response, StreamingResponse

from runnel.errors import RunnelError
from runnel.models.pocket.sentence_vectors import SentenceVectors
from runnel.models.scored import Scored
from runnel.request import Progress, growing
from runnel.search.project import index_name
from runnel.search.records import DocumentRow
from runnel.server.context import MAX_QUERY_CHARS, Context, InContext
from runnel.server.refusals import Refusal
from runnel.server.view import (
    OWN,
    Opened,
    answers_view,
    document_view,
    opened_id,
    picture_view,
    read_opened,
)
from runnel.server.work import QueuedRequest, take_error
from runnel.text.documents.document import HEAD_BYTES, recognize
from runnel.text.documents.page_part import page_part

router = APIRouter(include_in_schema=False)

STATIC = Path(__file__).parent / "static"
_JSON_LINES = "application/x-ndjson"
Id = Annotated[str, Query(min_length=1)]
Offset = Annotated[int, Query(ge=0, lt=1 << 53)]


@router.get("/")
async def page() -> Response:
    """Return the page."""
    return FileResponse(STATIC / "index.html")


@router.get("/page/about")
async def about(context: InContext) -> dict[str, object]:
    """Return the index, {"index": {"name", "documents"}}, or {"index": null} without one."""
    loaded = context.loaded()
    if loaded.place is None:  # of the index
        return {"index": None}
    newest = await asyncio.to_thread(loaded.index.newest)
    return {"index": {"name": index_name(loaded.place), "documents": len(newest)}}


@router.post("/page/files")
async def open_file(
    name: Annotated[str, Query(min_length=1, max_length=1000)], request: Request, context: InContext
) -> Response:
    """Read the file in the body, and keep it in memory; the result is its id."""
    retriever = context.loaded().retriever
    data = await request.body()
    id = opened_id(name, data)
    if context.opened.get(id) is not None:
        return _last({"id": id})
    document = await context.work.parse(
        request, data, lambda reader, path: read_opened(reader, path, name)
    )

    def keep(vectors: SentenceVectors | None) -> dict[str, str]:
        # the bytes of a PDF file are kept for the pictures of its pages
        pdf = data if recognize(data[:HEAD_BYTES], name) == "pdf" else b""
        context.opened.put(id, Opened(name, document, vectors=vectors, pdf=pdf))
        return {"id": id}

    if not retriever.remembers:
        return _last(keep(None))
    return await _streamed(
        request,
        context,
        [document.text],
        lambda progress: keep(next(retriever.remember([document], progress=progress))),
    )


@router.get("/page/document")
async def document(id: Id, context: InContext) -> dict[str, object]:
    """Return a document of the index, or a file that was opened, as `document_view`."""
    shown, _ = await _shown(context, id)
    document = shown.document
    # some kinds of file count their pages, of others only the blocks know theirs
    pages = document.pages or max((block.page or 0 for block in document.blocks), default=0) or None
    return {
        "id": id,
        "name": shown.file,
        "title": document.title,
        "pages": pages,
        "pictures": document.kind == "pdf",
        **document_view(document),
    }


@router.get("/page/document/answers")
async def answers(
    id: Id,
    q: Annotated[str, Query(min_length=1, max_length=MAX_QUERY_CHARS)],
    request: Request,
    context: InContext,
) -> Response:
    """Score the sentences of a document; the result is `answers_view`."""
    shown, row = await _shown(context, id)
    loaded = context.loaded()
    if row is None:  # an opened file
        remembered = shown.vectors is not None
        content = shown.document if shown.vectors is None else shown.vectors

        def score(progress: Progress) -> Scored:
            return next(loaded.retriever.scan(q, [content], progress=progress))
    else:
        newest = await asyncio.to_thread(loaded.index.newest)
        remembered = newest.store.settings.remember

        def score(progress: Progress) -> Scored:
            return newest.score(q, id, progress=progress)

    return await _streamed(
        request,
        context,
        [q] if remembered else [q, shown.document.text],
        lambda progress: answers_view(shown.document, score(progress)),
    )


@router.get("/page/document/picture")
async def picture(
    id: Id, start: Offset, end: Offset, request: Request, context: InContext
) -> dict[str, object]:
    """Return the page of a PDF with the characters [start, end), as `picture_view`."""
    shown, row = await _shown(context, id)
    file = shown.pdf if row is None else await asyncio.to_thread(_source_of, row)
    part = await asyncio.to_thread(
        page_part, shown.document.text, shown.document.places(), start, end
    )
    if part is None:
        raise Refusal("not_found", f"{shown.file} has no page with the characters {start}-{end}")
    return await context.work.parse(
        request,
        file,
        lambda reader, path: picture_view(reader.picture(path, part, name=shown.file)),
    )


def _source_of(row: DocumentRow) -> bytes:
    """Return the file that a document was read from, if it has not changed since."""
    with suppress(OSError):
        data = Path(row.source).read_bytes()
        if hashlib.sha256(data).hexdigest() == row.source_hash:
            return data
    raise Refusal(
        "not_found",
        f"{row.source} has changed since it was indexed, or is gone; run runnel index again",
    )


async def _streamed(
    request: Request, context: Context, texts: Sequence[str], call: Callable[[Progress], object]
) -> Response:
    """Run a model call in the queue of requests (`Context.run`); stream its progress and result.

    1. The call runs in a thread and puts a step into `steps` after each part that it has read.
    2. The answer begins with the first step, so that a request that is refused before has the
       refusal's status; without a step, the result is the only line.
    3. Steps are sent as they come, then the result, or an error as the last line.

    Args:
        texts: what the call reads, by which the queue measures its work.
        call: gets a function to report its progress.
    """
    loop = asyncio.get_running_loop()
    steps: asyncio.Queue[dict[str, int] | None] = asyncio.Queue()

    def run(job: QueuedRequest) -> object:
        def progress(done: int, total: int | None) -> None:
            job.record(done)
            # the total is of the whole request: `total` may be of one of its texts
            loop.call_soon_threadsafe(
                steps.put_nowait, {"done": done, "total": max(done, job.tokens)}
            )

        # the queue stops a request whose client has gone
        return call(growing(progress, job.expect_wanted))

    task = asyncio.create_task(context.run(request, texts, run))
    task.add_done_callback(lambda _: steps.put_nowait(None))
    task.add_done_callback(take_error)
    first = await steps.get()
    if first is None:
        return _last(task.result()[0])

    async def lines() -> AsyncIterator[str]:
        step: dict[str, int] | None = first
        try:
            while step is not None:
                yield _line(step)
                step = await steps.get()
            yield _line({"result": task.result()[0]})
        except (Refusal, RunnelError) as error:
            yield _line({"error": str(error) if isinstance(error, RunnelError) else error.detail})
        finally:
            task.cancel()  # the client has gone, if it still runs

    return StreamingResponse(lines(), media_type=_JSON_LINES)


def _line(value: object) -> str:
    return json.dumps(value) + "\n"


def _last(result: object) -> Response:
    return Response(_line({"result": result}), media_type=_JSON_LINES)


async def _shown(context: Context, id: str) -> tuple[Opened, DocumentRow | None]:
    """Return a file that was opened, or a document of the index in the same form and its row."""
    if not id.startswith(OWN):
        row = await asyncio.to_thread(context.loaded().index.document, id)
        return Opened(id, row.document()), row
    opened = context.opened.get(id)
    if opened is None:
        raise Refusal("not_found", "the server no longer has this file; open it again")
    return opened, None
