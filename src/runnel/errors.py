"""Every error that runnel raises on purpose.

    RunnelError
    ├── InputError (ValueError)          an argument or a text that cannot be used
    │   └── ReadError                    a file that is missing, unreadable, damaged, beyond a limit or undecodable
    ├── CheckpointError (ValueError)     a model folder that is foreign, incomplete, damaged or of an unknown kind
    ├── StateError (ValueError)          a state that does not belong to this model, or is damaged
    ├── StoreError                       an index that is missing, locked, of another model or format, or damaged
    ├── NumericalError (ArithmeticError) NaN or infinity where a number is needed
    ├── MissingDependency (ImportError)  an optional package is needed; the message has the install line
    ├── BackendUnavailable (RuntimeError) the asked-for device or kernel is not there
    └── Cancelled                        the request was cancelled before it finished

Every message says what came, what was expected and what to do.
"""


class RunnelError(Exception):
    """Base of all errors raised by runnel."""


class InputError(RunnelError, ValueError):
    """An argument or a text that cannot be used."""


class ReadError(InputError):
    """A file that is missing, unreadable, damaged, encrypted, beyond a limit, binary or undecodable."""


class CheckpointError(RunnelError, ValueError):
    """A model folder that is foreign, incomplete, damaged or of an unknown kind."""


class StoreError(RunnelError):
    """An index that is missing, locked by another writer, of another model or format, or damaged."""


class StoreBusy(StoreError):
    """Another process is writing there; waiting helps."""


class StateError(RunnelError, ValueError):
    """A state that does not belong to this model, or is damaged."""


class NumericalError(RunnelError, ArithmeticError):
    """NaN or infinity where a number is needed."""


class MissingDependency(RunnelError, ImportError):
    """An optional package is needed for this call; the message has the install line."""


class BackendUnavailable(RunnelError, RuntimeError):
    """The device or kernel that was asked for is not there."""


class Cancelled(RunnelError):
    """The request was cancelled before it finished."""
