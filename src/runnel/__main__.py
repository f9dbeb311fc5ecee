"""The console script, and `python -m runnel`."""

import os
import sys


def main() -> None:
    """Run the command in `sys.argv`."""
    for name in ("stdin", "stdout", "stderr"):
        # closed, as by `>&-`; before any file is opened, which would get its number
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))
    from runnel.cli import console

    console()


if __name__ == "__main__":
    main()
