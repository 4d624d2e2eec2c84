"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file that takes the name `path` when the block ends, and goes where the block raises.

    Of two writers of one name the last wins, and neither touches the other's bytes. Raises OSError.
    """
    target = Path(path)
    part = target.parent / f".{target.name}.{secrets.token_hex(4)}.part"
    file = part.open("xb")
    try:
        with file:
            yield file
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
