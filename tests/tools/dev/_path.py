"""Makes the modules of tools/dev.d importable, and says where the tree and its programs are."""

import os
import pathlib
import sys

SOURCE = pathlib.Path(os.environ.get("WEFT_SOURCE", pathlib.Path(__file__).parents[3]))
BIN = pathlib.Path(os.environ.get("WEFT_BIN", SOURCE / "build/release/bin"))
sys.path.insert(0, str(SOURCE / "tools/dev.d"))
