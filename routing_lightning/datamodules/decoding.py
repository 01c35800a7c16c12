"""Reading pictures of any size and kind as RGB squares."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from routing_lightning.errors import UsageError


@dataclass(frozen=True)
class SquareDecoder:
    """Reads a picture in any format that Pillow reads, upright, as RGB of one size.

    Pictures are turned as their EXIF data say, the first frame is taken of those that move, transparent parts become
    white, and 16 bits per channel become 8. Profiles of colours are not applied.

    Attributes:
        size: height and width of the result.
        resize: length of the shorter side before the crop, at least ``size``.
        crop: whether the middle is cut out; otherwise the whole picture is stretched to a square.
    """

    size: int
    resize: int
    crop: bool

    def __call__(self, path: Path) -> np.ndarray:
        """Reads a picture.

        Returns:
            uint8 (size, size, 3).

        Raises:
            UsageError: if the file is no picture, damaged, far too large, or of a kind without a range of values.
        """
        try:
            with Image.open(path) as picture:
                # lets the JPEG decoder skip detail that is not needed; does nothing for other formats
                picture.draft("RGB", (2 * self.resize, 2 * self.resize))
                upright = ImageOps.exif_transpose(picture)
                return np.asarray(self._squared(as_rgb(upright)))
        # Pillow's decoders raise what they like for damaged files
        except Exception as error:
            # Pillow writes the path into some of its sentences
            reason = str(error).replace(repr(str(path)), "").strip(" .") or type(error).__name__
            raise UsageError(reason) from error

    def _squared(self, picture: Image.Image) -> Image.Image:
        if picture.size == (self.size, self.size) and (self.resize == self.size or not self.crop):
            return picture
        box = None
        if self.crop:
            # the part of the picture that is left of it after it was resized and cropped
            width, height = picture.size
            side = min(width, height) * self.size / self.resize
            left, top = (width - side) / 2, (height - side) / 2
            box = (left, top, left + side, top + side)
        return picture.resize((self.size, self.size), Image.Resampling.BICUBIC, box)


def as_rgb(picture: Image.Image) -> Image.Image:
    """A picture of any mode as RGB.

    Raises:
        ValueError: if the mode has no known range of values or no way to RGB.
    """
    if picture.mode == "RGB" and "transparency" not in picture.info:
        return picture
    if picture.mode == "F":
        raise ValueError("its values are floating point, of no known range; convert it to 8 or 16 bits")
    if picture.mode.startswith("I"):  # I;16 and its kin, or I, in which Pillow puts 16 bits, too
        values = np.asarray(picture).astype(np.int64)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise ValueError("its values are 32-bit, of no known range; convert it to 8 or 16 bits")
        return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    if "transparency" in picture.info or picture.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        clear = picture.convert("RGBA") if picture.mode != "La" else picture.convert("LA").convert("RGBA")
        white = Image.new("RGBA", clear.size, "white")
        return Image.alpha_composite(white, clear).convert("RGB")
    return picture.convert("RGB")
