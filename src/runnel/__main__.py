"""The console script, and `python -m runnel`."""

import os
import sys

from runnel.commands import background


def main() -> None:
    """Run the command in `sys.argv` in the background process if it can, else in this process."""
    code = background.run(sys.argv[1:])
    if code is None:
        from runnel.cli import console

        console()
    else:
        os._exit(code)


if __name__ == "__main__":
    main()
