"""Process that indexes long files, with the lowest priority; `indexing.py` starts it.

Its argument is the path of the index. For each line of JSON on its standard input, {"path": ...,
"kind": ...}, it indexes the next chunk of that file, and writes whether there was one.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from fieldcraft.extensions.studio.index import TrajectoryIndex
from fieldcraft.extensions.studio.run_view import TrajectoryFile

LOWEST_PRIORITY = 19  # nice value: a local browser and the server have priority


def main() -> None:
    os.nice(LOWEST_PRIORITY)
    index = TrajectoryIndex(Path(sys.argv[1]))
    for line in sys.stdin:
        request = json.loads(line)
        file = TrajectoryFile(Path(request["path"]), run="", part="", kind=request["kind"])
        print(json.dumps(index.index_next_chunk(file)), flush=True)


if __name__ == "__main__":
    main()
