"""Writes the generated pages anew: what a program prints about its own settings. Wraps prose that is too wide."""

import build
import prose
from common import ROOT, output, say

# page -> the program that prints it, with its arguments
PAGES = {
    "docs/settings.md": ("weft-settings", "--markdown"),
    "docs/training-keys.md": ("weft-train", "--markdown"),
}


def add_arguments(parser) -> None:
    parser.add_argument("--wrap", action="store_true",
                        help=f"only wrap paragraphs of more than {prose.COLUMNS} columns; builds nothing")


def run(options) -> None:
    for page in prose.wrap_all():
        say(f"wrapped {page}")
    if options.wrap:
        return
    for page, text in generate().items():
        (ROOT / page).parent.mkdir(exist_ok=True)
        (ROOT / page).write_text(text)
        say(f"wrote {page}")


def generate() -> dict[str, str]:
    """What each page should be."""
    folder = build.build("release", sorted({program for program, *_ in PAGES.values()}))
    return {page: output([folder / "bin" / program, *arguments])
            for page, (program, *arguments) in PAGES.items()}
