"""The console of commands. It is not in `display`, because rich takes a while to import."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.segment import Segment

from runnel.commands.printable import printable


class PrintableConsole(Console):
    """A console that shows text as `printable`."""

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        for part in super().render(renderable, options):
            yield part if part.control else Segment(printable(part.text), part.style)
