"""Before a model is loaded: the names that commands have for precisions, and a note that kernels
are being compiled.
"""

from functools import cache
from typing import Any

from runnel.jobs.progress import notify

# dtypes by the names that users write: the names in `load_backbone`
DTYPES = {"auto": "auto", "bf16": "bfloat16", "fp32": "float32", "int8": "int8"}


def note_compiling() -> None:
    """Tell the user, once for each call, that kernels are being compiled, if numba's cache lacks
    one.
    """
    _compiling_note().written = False


@cache
def _compiling_note() -> Any:
    """Return the listener to numba, which is imported late: it writes the note unless it is
    `written`.
    """
    from numba.core import event

    class Note(event.Listener):
        written = False

        def on_start(self, event: event.Event) -> None:
            if not self.written:
                self.written = True
                notify("compiling kernels for this processor, once; later runs start at once")

        def on_end(self, event: event.Event) -> None:
            pass

    note = Note()
    event.register("numba:compile", note)
    return note
