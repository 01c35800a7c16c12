"""Downloads: a failure is told in one sentence, and no archive writes outside of its folder."""

import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

from routing_lightning.errors import UsageError

_FAILURES = (OSError, RuntimeError, ValueError, EOFError, HTTPException, tarfile.TarError, zlib.error)


@contextmanager
def explained_download(what: str, path: Path) -> Iterator[None]:
    """Turns whatever goes wrong inside into a ``UsageError`` that names ``what`` and the missing ``path``.

    Members of archives that would lie outside of their folder, or are no files or folders, are refused meanwhile: that
    torchvision unpacks all that an archive holds is Python's default before 3.14.
    """
    before = vars(tarfile.TarFile).get("extraction_filter")
    tarfile.TarFile.extraction_filter = staticmethod(tarfile.data_filter)
    try:
        yield
    except _FAILURES as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"{what} is not complete in {path} and downloading it failed ({reason}): check the network and "
            f"the free space, or set download: false and place the files in {path} by hand"
        ) from error
    finally:
        tarfile.TarFile.extraction_filter = before
