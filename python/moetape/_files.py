"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import BinaryIO

from moetape._moetape import Error, OutputFile
from moetape.errors import IoError


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[BinaryIO]:
    """A file that takes the name `path` when the block ends, and goes where the block raises.

    Raises ConflictError where a file has the name, or has taken it when the block ends, unless `overwrite`
    is set; IoError where the system refuses, in the block too.
    """
    output = OutputFile(path, overwrite)
    try:
        with os_errors(path, "cannot be written"), open(output.hidden_path, "r+b") as file:
            yield file
        output.finish()
    finally:
        output.give_up()


@contextlib.contextmanager
def os_errors(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Raises IoError for the OSError of others, with the path and the system's words."""
    try:
        yield
    except Error:
        raise
    except OSError as error:
        raise IoError(f"{os.fspath(path)}: {what}: {error.strerror or error}") from error
