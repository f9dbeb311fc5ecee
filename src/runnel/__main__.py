"""The console script, and `python -m runnel`."""

import os
import sys

from runnel.commands import background


def main() -> None:
    """Run the command in `sys.argv` in the background process if it can, else in this process."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `>&-`; before any file is opened, which would get its number
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))
    code = background.run(sys.argv[1:])
    if code is None:
        from runnel.cli import console

        console()
    else:
        os._exit(code)


if __name__ == "__main__":
    main()
