"""What commands share that ask language models many questions: options, the folder with the replies, tokens and notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runnel.commands.ask import open_llm
from runnel.commands.display import print_text, say
from runnel.commands.options import Llm, LlmModel
from runnel.errors import counted
from runnel.files import create_folder, sweep

if TYPE_CHECKING:
    from runnel.generation.endpoint import LanguageModelClient
    from runnel.lab.evaluation.qa.inquiry import Inquiry
    from runnel.lab.replies import Replies

Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Keep results and all replies, and resume there.")]
QaPaths = Annotated[list[str], typer.Argument(metavar="PATH...", help="Files or folders of questions, documents and answers.")]
SetNames = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME", help="One of the sets there (default: all); repeatable.")
]


@dataclass(frozen=True)
class AskingOptions:
    """Which language model is asked, and how."""

    llm: Llm = None
    llm_model: LlmModel = None
    threads: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 8

    def open(self) -> LanguageModelClient:
        """Return the language model; raises as `open_llm`."""
        return open_llm(self.llm, self.llm_model)

    @contextmanager
    def replies(self, folder: Path, endpoint: LanguageModelClient, *judges: LanguageModelClient) -> Iterator[Replies]:
        """Open the replies that are stored in a folder, which is created."""
        from runnel.lab.replies import Replies

        create_folder(folder)
        with Replies(endpoint, folder / "replies") as replies:
            judged = "".join(f", judged by {judge.model}" for judge in judges)
            sweep(folder)
            say(f"note: asking {endpoint.model} at {endpoint.url}{judged}")
            yield replies


def costs(replies: Replies, **versions: str) -> dict[str, Any]:
    """Return the tokens of the replies of this run to each kind of request, by its version."""
    from runnel.lab.replies import Usage

    return {name: asdict(replies.used_by.get(version, Usage())) for name, version in versions.items()}


def show_costs(found: Mapping[str, Any]) -> None:
    """Print a line for each kind of request that there was."""
    for name, used in found.items():
        if used["requests"]:
            tokens = f"{counted(used['prompt_tokens'], 'token')} read, {used['completion_tokens']:,} written"
            print_text(f"{name}: {counted(used['requests'], 'request')}, {tokens}")


def say_notes(inquiry: Inquiry, missing: int) -> None:
    """Report on stderr what was unusual about replies, and how many items have none."""
    for note, count in inquiry.notes.most_common():
        say(f"note: {count:,} {note}")
    if inquiry.replies.used.estimated:
        say(f"note: the endpoint did not count the tokens of {inquiry.replies.used.estimated:,} replies; they are estimated")
    if inquiry.failure is not None:
        say(f"note: the last failure of an endpoint: {inquiry.failure}")
    if inquiry.stopped is not None:
        say(f"note: stopped: {inquiry.stopped}")
    if missing:
        say(f"note: without a reply yet, and in no score: {counted(missing, 'question')}; repeat the command to ask again")
