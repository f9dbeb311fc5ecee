"""`python -m runnel.cli`."""

from runnel.cli import console

if __name__ == "__main__":
    console()
