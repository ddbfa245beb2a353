"""Write scikit-learn's handwritten digits as PNG files in class folders: FOLDER/train/3/0017.png, FOLDER/validation/...

    python entrypoints/vit_tf_digits/prepare.py jobs/digits-png

The digits are the test set of "Optical Recognition of Handwritten Digits" (UCI, E. Alpaydin and C. Kaynak, 1998,
CC BY 4.0), 1,797 images of 8 x 8, as scikit-learn ships them. One of five goes to `validation`. It needs scikit-learn
only.
"""

import struct
import sys
import zlib
from pathlib import Path

from sklearn.datasets import load_digits


def png(pixels) -> bytes:
    """Return a greyscale PNG of *pixels*, uint8 of (height, width)."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width = pixels.shape
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def main(folder: Path) -> None:
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        part = "validation" if number % 5 == 4 else "train"
        path = folder / part / str(label) / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png((pixels * 255 / 16).astype("uint8")))
    print(f"{len(digits.images)} images in {folder}/train and {folder}/validation")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
