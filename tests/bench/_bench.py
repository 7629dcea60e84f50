"""What all benchmarks share: where the built programs are, and how progress is said."""

import os
import pathlib
import sys

BIN = pathlib.Path(os.environ["WEFT_BIN"])


def say(text: str) -> None:
    """On standard error: standard output is for rows."""
    print(text, file=sys.stderr, flush=True)
