"""Before a model is loaded: the names that commands have for precisions, and a note that kernels
are being compiled.
"""

from typing import Protocol

from runnel.jobs.progress import notify

# dtypes by the names that users write: the names in `load_backbone`
DTYPES = {"auto": "auto", "bf16": "bfloat16", "fp32": "float32", "int8": "int8"}


class _CompilingNote(Protocol):
    """What `Note` in `note_compiling` is: a class there, because numba is imported late."""

    written: bool


_listener: _CompilingNote | None = None  # of numba's events, once it is registered


def note_compiling() -> None:
    """Tell the user, once for each call, that kernels are being compiled, if numba's cache lacks
    one.
    """
    global _listener
    if _listener is not None:
        _listener.written = False
        return
    from numba.core import event

    class Note(event.Listener):
        written = False

        def on_start(self, event: event.Event) -> None:
            if not self.written:
                self.written = True
                notify("compiling kernels for this processor, once; later runs start at once")

        def on_end(self, event: event.Event) -> None:
            pass

    _listener = note = Note()
    event.register("numba:compile", note)
