"""Another build of Weft as a peer: --before DIR, for benchmarks that measure it in turns with this one.

Rows have the peer_name "before"; their ratio is above 1 where this build is better.
"""

import argparse
import pathlib

from _bench import BIN

NAME = "before"


def add_argument(parser) -> None:
    parser.add_argument("--before", metavar="DIR", type=folder_of_programs,
                        help="measure the programs in DIR (build/release/bin of another checkout) in turns with "
                             "this build's, as one more peer")


def folder_of_programs(text: str) -> pathlib.Path:
    folder = pathlib.Path(text).resolve()
    if not (folder / "weft-bw").is_file():
        raise argparse.ArgumentTypeError(f"there is no weft-bw in {folder}; give the folder of another build's "
                                         "programs, such as build/release/bin")
    return folder


def builds(options) -> dict[str, pathlib.Path]:
    """Folders of programs by name, this build's first."""
    return {"weft": BIN} | ({NAME: options.before} if options.before else {})
