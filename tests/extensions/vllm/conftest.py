from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from vllm_rig import VllmRig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[VllmRig]:
    with ExitStack() as stack:
        yield VllmRig(tmp_path, stack)
