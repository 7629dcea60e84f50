"""tools/dev: set up, build, try, test, measure and check Weft. Python's standard library only."""

import argparse
import sys

import bench
import build
import check
import demo
import docs
import setup
import tests
from common import Failure, say

COMMANDS = {
    "setup": setup,
    "build": build,
    "demo": demo,
    "test": tests,
    "bench": bench,
    "check": check,
    "docs": docs,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tools/dev", description="Sets up what is missing, then does what it is asked.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name, help=module.__doc__.splitlines()[0], description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    # What follows "--" belongs to the program that a sub-command runs.
    mine, rest = arguments, []
    if "--" in arguments:
        split = arguments.index("--")
        mine, rest = arguments[:split], arguments[split + 1:]
    options = parser.parse_args(mine)
    if rest:
        if not hasattr(options, "arguments"):
            parser.error(f"{options.command} passes nothing on: {' '.join(rest)}")
        options.arguments += rest
    try:
        return options.run(options) or 0
    except Failure as failure:
        say(f"failed: {failure}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
