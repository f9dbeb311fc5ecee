"""Options of commands that ask language models many questions, and what their replies cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runnel.commands.ask import open_llm
from runnel.commands.display import print_text
from runnel.commands.options import Llm, LlmModel
from runnel.errors import counted

if TYPE_CHECKING:
    from runnel.generation.endpoint import LanguageModelClient

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


def show_costs(found: Mapping[str, Any]) -> None:
    """Print a line for each kind of request that there was."""
    for name, used in found.items():
        if used["requests"]:
            tokens = f"{counted(used['prompt_tokens'], 'token')} read, {used['completion_tokens']:,} written"
            print_text(f"{name}: {counted(used['requests'], 'request')}, {tokens}")
