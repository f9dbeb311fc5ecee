"""`python -m runnel`."""

from runnel.cli import console

if __name__ == "__main__":
    console()
