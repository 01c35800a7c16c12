"""Decoding image files once into a memory-mapped uint8 array."""

import hashlib
import json
import os
import uuid
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from rich.progress import track
from torch import Tensor

from routing_lightning.errors import UsageError

CHUNK = 1024
"""Images decoded before they are written; bounds the memory in use."""


class Decoder(Protocol):
    """Reads an image file; the text of it says how, so that what is decoded otherwise has a cache of its own."""

    def __call__(self, path: Path) -> np.ndarray:
        """The image, uint8 (size, size, 3); raises UsageError if it cannot be read."""

    def __str__(self) -> str: ...


class ImageCache:
    """The images of a list of files, decoded to RGB, resized and kept in one .npy file.

    The file's name is a hash of the names, sizes and times of change of the images and of the image size, so that
    changed images are decoded anew. It is written under a temporary name and then renamed: a run that breaks off leaves
    no half-written cache, and two runs at once do each other no harm.

    Args:
        root: folder of the images.
        names: paths of the images relative to ``root``; their order is the order of the array.
        size: height and width of the decoded images.
        cache_dir: folder of the cache; None: ``.cache`` in ``root``.
        decoder: reads the images, all of them even if some cannot be read: those are black, and in ``unreadable``.
            None: :func:`decode`, and the first image that cannot be read ends it.

    Raises:
        UsageError: if an image file is missing.
    """

    def __init__(
        self,
        root: Path,
        names: Sequence[str],
        size: int,
        cache_dir: str | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        self.root = root
        self.names = names
        self.shape = (len(names), size, size, 3)
        self.decoder = decoder
        self.folder = Path(cache_dir) if cache_dir is not None else root / ".cache"
        self.path = self.folder / f"images-{size}-{self._key()}.npy"

    def prepare(self) -> None:
        """Decodes the images, in parallel and with a progress bar, unless a good cache file is there.

        Raises:
            UsageError: if an image cannot be read, or the cache cannot be written.
        """
        if self._open() is not None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._not_writable(error) from error
        temporary = self.folder / f"{self.path.name}.{uuid.uuid4().hex}.tmp"
        try:
            self._write(temporary)
            os.replace(temporary, self.path)
        except OSError as error:
            raise self._not_writable(error) from error
        finally:
            temporary.unlink(missing_ok=True)

    def load(self) -> Tensor:
        """The images, uint8 (M, 3, size, size), memory-mapped, in channels_last memory.

        Raises:
            UsageError: if ``prepare`` was not run here.
        """
        array = self._open()
        if array is None:
            raise UsageError(
                f"the images of {self.root} are not decoded: {self.path} is missing or damaged; call "
                "prepare_data() first, on each machine that does not share cache_dir"
            )
        return torch.from_numpy(array).permute(0, 3, 1, 2)

    def unreadable(self) -> dict[int, str]:
        """Rows of the images that could not be read, each with the reason; they stand behind the array in the file.

        Raises:
            UsageError: if ``prepare`` was not run here.
        """
        if self.decoder is None:
            return {}
        self.load()
        return self._reasons() or {}

    def _reasons(self) -> dict[int, str] | None:
        """What stands behind the array; None if that is missing or damaged."""
        try:
            with self.path.open("rb") as file:
                np.lib.format.read_magic(file)
                np.lib.format.read_array_header_1_0(file)
                file.seek(int(np.prod(self.shape)), os.SEEK_CUR)
                return {int(row): str(reason) for row, reason in json.loads(file.read()).items()}
        except (OSError, ValueError, AttributeError):
            return None

    def _open(self) -> np.ndarray | None:
        """The mapped array, or None if the file is missing or damaged."""
        try:
            # copy-on-write: torch wants a writable array, and the file must never change
            array = np.load(self.path, mmap_mode="c")
        except (OSError, ValueError, EOFError):
            return None
        if array.shape != self.shape or array.dtype != np.uint8:
            return None
        return array if self.decoder is None or self._reasons() is not None else None

    def _write(self, path: Path) -> None:
        with path.open("xb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": self.shape}
            np.lib.format.write_array_header_1_0(file, header)
            unreadable: dict[int, str] = {}
            decoded = track(self._decoded(), f"Decoding {self.root}", total=len(self.names))
            for row, image in enumerate(decoded):
                if isinstance(image, UsageError):
                    unreadable[row] = str(image)
                    image = np.zeros(self.shape[1:], np.uint8)
                file.write(image.tobytes())
            if self.decoder is not None:
                file.write(json.dumps(unreadable).encode())
            file.flush()
            os.fsync(file.fileno())

    def _decoded(self) -> Iterator[np.ndarray | UsageError]:
        with ThreadPoolExecutor() as pool, warnings.catch_warnings():
            # tell of large images, which are decoded, and of damaged metadata, which are not needed
            warnings.simplefilter("ignore")
            for start in range(0, len(self.names), CHUNK):
                yield from pool.map(self._decode, [self.root / name for name in self.names[start : start + CHUNK]])

    def _decode(self, path: Path) -> np.ndarray | UsageError:
        if self.decoder is None:
            return decode(path, self.shape[1])
        try:
            return self.decoder(path)
        except UsageError as error:
            return error

    def _key(self) -> str:
        digest = hashlib.sha256()
        if self.decoder is not None:
            digest.update(f"{self.decoder}\n".encode())
        for name in self.names:
            try:
                status = os.stat(os.path.join(self.root, name))  # pathlib's way takes longer than the disk
            except OSError as error:
                raise UsageError(
                    f"the image {self.root / name} is missing: complete the images in {self.root}"
                ) from error
            entry = f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n"
            digest.update(entry.encode(errors="surrogateescape"))  # names may be bytes that are no text
        return digest.hexdigest()[:24]

    def _not_writable(self, error: OSError) -> UsageError:
        return UsageError(
            f"cannot write the decoded images to {self.folder} ({error.strerror or error}): "
            "set cache_dir to a folder that is writable and has enough space"
        )


def decode(path: Path, size: int) -> np.ndarray:
    """Reads an image as RGB of the given size.

    Args:
        path: image file in any format that Pillow reads.
        size: height and width of the result; another size or shape is resized to it.

    Returns:
        uint8 (size, size, 3).

    Raises:
        UsageError: if the file is no image, or damaged.
    """
    try:
        with Image.open(path) as image:
            # lets the JPEG decoder skip detail that is not needed; does nothing for other formats
            image.draft("RGB", (2 * size, 2 * size))
            rgb = image.convert("RGB")
    # Pillow's decoders raise what they like for damaged files
    except Exception as error:
        raise UsageError(f"cannot read the image {path} ({error}): replace or remove it") from error
    if rgb.size != (size, size):
        rgb = rgb.resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(rgb)


def image_names(folder: Path) -> list[str]:
    """Names of the image files directly in ``folder``, sorted; other extensions are passed over."""
    extensions = Image.registered_extensions()
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".")]
    return sorted(name for name in names if os.path.splitext(name)[1].lower() in extensions)


def class_folders(folder: Path) -> list[str]:
    """Names of the folders in ``folder``, sorted, without hidden ones; none if there is no such folder."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
