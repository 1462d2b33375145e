"""Click logs: both formats, and what is said of files that are not sound."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from criteo.log_source import LogSource
from criteo.planted import PlantedStream, PlantedTruth
from criteo.source import Position

from tfembed.data.criteo import FIELD_NAMES, find_logs
from tfembed.errors import DataError

STREAM = PlantedStream(PlantedTruth(largest_vocabulary=300))
LINES = STREAM.lines(0, 60)
START = Position()


def write(path, lines=LINES, *, header=False, delimiter=b"\t"):
    text = b"".join(lines).replace(b"\t", delimiter)
    if header:
        text = delimiter.join(n.encode() for n in FIELD_NAMES) + b"\n" + text
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return str(path)


def read(pattern, start=START, **options):
    source = LogSource(find_logs(pattern), **{"holdout": 0, **options})
    return source, list(source.chunks(start))


def column(chunks, name):
    axis = 1 if name == "categories" else 0
    parts = [np.asarray(getattr(chunk, name)) for chunk in chunks]
    return np.concatenate(parts, axis=axis)


def with_field(place, field, line=LINES[16]):
    fields = line.rstrip(b"\n").split(b"\t")
    fields[place] = field
    return b"\t".join(fields) + b"\n"


@pytest.mark.parametrize("name", ["log.txt", "log.txt.gz"])
@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("delimiter", [b"\t", b","])
def test_every_form_of_a_log_reads_the_same(tmp_path, name, header, delimiter):
    path = write(tmp_path / name, header=header, delimiter=delimiter)
    _, chunks = read(path)
    drawn = STREAM.draw(0, 60)
    np.testing.assert_array_equal(column(chunks, "labels"), drawn.labels)
    np.testing.assert_array_equal(column(chunks, "integers"), drawn.integers)
    np.testing.assert_array_equal(
        column(chunks, "categories").T, STREAM.strings[drawn.ids].astype(object)
    )


def test_line_breaks_of_windows_and_floats_for_integers_are_read(tmp_path):
    lines = [with_field(3, b"260.0"), with_field(3, b"-1")]
    path = write(tmp_path / "a", [x.replace(b"\n", b"\r\n") for x in lines])
    _, chunks = read(path)
    assert column(chunks, "integers")[:, 2].tolist() == [260, -1]


BAD_LINES = {
    "too few fields": (b"\t".join([b"1"] * 39) + b"\n", "too few fields: 39"),
    "too many fields": (b"\t".join([b"1"] * 41) + b"\n", "too many fields: 41"),
    "an empty line": (b"\n", "an empty line"),
    "a label that is no label": (with_field(0, b"2"), "label is '2'"),
    "no label": (with_field(0, b""), "label is ''"),
    "text for a number": (with_field(2, b"abc"), "I2 is 'abc'"),
    "nan for a number": (with_field(13, b"nan"), "I13 is 'nan'"),
    "inf for a number": (with_field(4, b"inf"), "I4 is 'inf'"),
    "digits and text": (with_field(1, b"12x"), "I1 is '12x'"),
}


@pytest.mark.parametrize("line, said", BAD_LINES.values(), ids=BAD_LINES)
@pytest.mark.parametrize("name", ["log.txt", "log.txt.gz"])
def test_a_bad_line_is_named_with_its_path_and_number(
    tmp_path, name, line, said
):
    path = write(tmp_path / name, [*LINES[:16], line, *LINES[17:]])
    with pytest.raises(DataError) as caught:
        read(path)
    assert f"{path}:17: " in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize("line, said", BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_is_skipped_and_counted_on_demand(tmp_path, line, said):
    lines = [*LINES[:16], line, *LINES[17:30], line, *LINES[30:]]
    path = write(tmp_path / "log.txt", lines)
    source, chunks = read(path, skip_bad_lines=True, epochs=2)
    assert source.skipped.count == 2
    assert f"{path}:17: " in source.skipped.first[0]
    assert f"{path}:31: {said}" in source.skipped.first[1]
    good = np.delete(STREAM.draw(0, 60).labels, 16)
    np.testing.assert_array_equal(
        column(chunks, "labels"), np.concatenate([good, good])
    )


def test_a_bad_line_that_is_read_again_is_counted_once(tmp_path):
    lines = [*LINES[:16], b"bad\n", *LINES[16:30], b"bad\n"]
    path = write(tmp_path / "log.txt", lines)
    source, chunks = read(path, skip_bad_lines=True)
    # As where a training goes on that had been read ahead of.
    list(source.chunks(Position(*chunks[0].positions[9].tolist())))
    assert source.skipped.count == 2


@pytest.mark.parametrize("cut", [1, 3, 10, 40, 80, 150])
def test_a_file_that_ends_in_the_middle_of_a_line_is_named(tmp_path, cut):
    path = tmp_path / "log.txt"
    lines = [*LINES[:29], with_field(39, b"12345678")]
    path.write_bytes(b"".join(lines)[: -1 - cut])
    with pytest.raises(DataError, match=r"log.txt:30: .*cut off in the middle"):
        read(str(path))
    source, chunks = read(str(path), skip_bad_lines=True)
    assert source.skipped.count == 1
    assert len(column(chunks, "labels")) == 29


def test_a_whole_last_line_needs_no_line_break(tmp_path):
    path = tmp_path / "log.txt"
    path.write_bytes(b"".join([*LINES[:29], with_field(39, b"12345678")])[:-1])
    assert len(column(read(str(path))[1], "labels")) == 30


def test_a_gzip_file_that_is_cut_off_is_named(tmp_path):
    path = tmp_path / "log.txt.gz"
    whole = gzip.compress(b"".join(STREAM.lines(0, 2000)))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        DataError, match=r"log.txt.gz:\d+: cannot be read furth"
    ):
        read(str(path))
    source, chunks = read(str(path), skip_bad_lines=True)
    assert source.skipped.count == 1
    assert 500 < len(column(chunks, "labels")) < 1500


def test_a_gzip_file_with_a_flipped_byte_is_named(tmp_path):
    path = tmp_path / "log.txt.gz"
    whole = bytearray(gzip.compress(b"".join(STREAM.lines(0, 2000))))
    whole[-6] ^= 0x10
    path.write_bytes(whole)
    with pytest.raises(
        DataError, match=r"log.txt.gz:2001: cannot be read furth"
    ):
        read(str(path))


@pytest.mark.parametrize(
    "name, said",
    [("missing.txt", "does not exist"), ("*.txt", "matches no file")],
)
def test_data_that_is_not_there_is_named(tmp_path, name, said):
    with pytest.raises(DataError, match=said) as caught:
        find_logs(str(tmp_path / name))
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("name", ["empty.txt", "empty.txt.gz"])
def test_an_empty_file_is_named(tmp_path, name):
    path = write(tmp_path / name, [])
    with pytest.raises(DataError, match=f"{name}: an empty file"):
        find_logs(path)


def test_a_header_without_lines_is_named(tmp_path):
    path = write(tmp_path / "a.csv", [], header=True, delimiter=b",")
    with pytest.raises(DataError, match="a.csv: only a header"):
        find_logs(path)


def test_a_header_of_other_columns_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("label,age,city\n1,2,x\n")
    with pytest.raises(DataError, match="a.csv:1: the header has 3 columns"):
        find_logs(str(tmp_path / "a.csv"))


def test_a_directory_is_named(tmp_path):
    with pytest.raises(DataError, match="a directory"):
        find_logs(str(tmp_path))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_reading_goes_on_after_any_row(tmp_path, suffix):
    for number in range(2):
        lines = LINES[number * 30 : number * 30 + 30]
        write(tmp_path / f"{number}.csv{suffix}", lines, header=True)
    pattern = str(tmp_path / f"*.csv{suffix}")
    options = {"epochs": 2, "holdout": 7}
    _, chunks = read(pattern, **options)
    positions, labels = column(chunks, "positions"), column(chunks, "labels")
    integers = column(chunks, "integers")
    assert len(labels) == 2 * 2 * 26
    for done in (1, 25, 26, 27, 52, 60, 104):
        _, rest = read(pattern, Position(*positions[done - 1]), **options)
        if done == 104:
            assert sum(len(chunk.labels) for chunk in rest) == 0
            continue
        np.testing.assert_array_equal(column(rest, "integers"), integers[done:])


def test_held_out_lines_are_not_trained_on(tmp_path):
    path = write(tmp_path / "log.txt")
    source, chunks = read(path, holdout=10)
    held_out = column(list(source.held_out()), "positions")[:, 2]
    trained = column(chunks, "positions")[:, 2]
    assert held_out.tolist() == [10, 20, 30, 40, 50, 60]
    assert sorted([*held_out, *trained]) == list(range(1, 61))
