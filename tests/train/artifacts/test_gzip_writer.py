"""The writer of gzip streams packs contents of different kinds."""

import gzip
import io
import random
import zlib

import pytest

from toolkit.train.artifacts.gzip_writer import BLOCK_BYTES, LEVEL, GzipWriter

SIZE = 3 * BLOCK_BYTES + 1000
NOISE = random.Random(1).randbytes(SIZE)
TEXT = b"".join(b"%d: a line of text, number %d\n" % (number, number * number) for number in range(20_000))[:SIZE]
PIECE = BLOCK_BYTES // 4
# Of 64 KiB, a quarter of a block each.
RECORDS = b"".join(NOISE[index : index + 16_384] + bytes(PIECE - 16_384) for index in range(0, SIZE - PIECE, PIECE))


def packed(content: bytes, threads: int = 2) -> bytes:
    sink = io.BytesIO()
    with GzipWriter(sink, threads) as writer:
        writer.write(content)
    return sink.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(NOISE, id="noise"),
        pytest.param(TEXT, id="text"),
        pytest.param(bytes(byte % 250 for byte in NOISE), id="nearly noise"),
        pytest.param(bytes(byte % 128 for byte in NOISE), id="seven bits of eight"),
        pytest.param((NOISE[:20_000] * 50)[:SIZE], id="noise that comes again within 32 KiB"),
        pytest.param(NOISE[:PIECE] + TEXT[PIECE:], id="noise, then text"),
        pytest.param(TEXT[:PIECE] + NOISE[PIECE:], id="text, then noise"),
        pytest.param(NOISE[: 3 * PIECE] + TEXT[3 * PIECE :], id="text at the end of a block"),
        pytest.param(RECORDS, id="records that begin with noise"),
        pytest.param(b"", id="nothing"),
    ],
)
@pytest.mark.parametrize("threads", [1, 3])
def test_any_content_comes_back_and_takes_no_more_than_with_zlib(content: bytes, threads: int) -> None:
    archive = packed(content, threads)

    assert gzip.decompress(archive) == content
    assert len(archive) <= 1.02 * len(gzip.compress(content, LEVEL)) + SIZE // 100
    assert archive == packed(content, 2)


def test_noise_is_stored_as_it_is() -> None:
    archive = packed(NOISE)

    assert NOISE[:10_000] in archive  # After the stream's header and a block's.
    assert len(archive) < SIZE + SIZE // 1000


def test_blocks_after_a_stored_one_refer_to_it() -> None:
    archive = packed(NOISE[:BLOCK_BYTES] + NOISE[BLOCK_BYTES - 20_000 : BLOCK_BYTES] * 13)

    assert len(archive) < BLOCK_BYTES * 1.05
    assert zlib.decompress(archive, 31)[:BLOCK_BYTES] == NOISE[:BLOCK_BYTES]
