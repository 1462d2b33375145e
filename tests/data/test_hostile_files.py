"""Hostile files give the right rows or an error with file and line or row.

The kind: a reader that gives another value than the file has. The cases are
made by a program: texts of numbers for each dtype, alone and in bags, and
shapes of files for each format.
"""

from __future__ import annotations

import gzip
from decimal import Decimal

import numpy as np
import pytest
import tensorflow as tf

import tfembed
from tfembed.data import Bag, SkippedLines, tables
from tfembed.data.criteo import FIELD_NAMES, find_logs, read_log
from tfembed.errors import ArgumentError, DataError

pa = pytest.importorskip("pyarrow", reason="an extra")

BAD = {
    "int32": ["2147483648", "-2147483649", "12_34", "1.0", "nan", "1e3"],
    "int64": [str(2**63), "1_0", "0x10", "-0X1f", "x", "1.5", "\u0663", "--1"],
    "float32": ["1e39", "-1e39", "16777217", "1_0.5", "0x1p3", "1e", "1,5"],
    "float64": [str(2**53 + 1), "1e400", "1_0", "one", "1.2.3"],
}
GOOD = {
    "int32": {"-2147483648": -(2**31), "+5": 5, " 7 ": 7, "": 0},
    "int64": {str(2**63 - 1): 2**63 - 1, "-0": 0, "007": 7},
    "float32": {"16777216": 2**24, "1e38": 1e38, ".5": 0.5, "-inf": -np.inf},
    "float64": {str(2**53): 2**53, "+1.": 1.0, "123456789.5": 123456789.5},
}


def read(path, kind, form="csv", **options):
    batches = getattr(tfembed.data, form)(path, {"x": kind}, 2, **options)
    rows = []
    for batch in batches:
        values = batch["x"]
        is_bag = isinstance(values, tf.RaggedTensor)
        rows += values.to_list() if is_bag else values.numpy().tolist()
    return rows


@pytest.mark.parametrize("is_bag", [False, True])
@pytest.mark.parametrize(
    ("dtype", "text"), [(d, text) for d in BAD for text in BAD[d]]
)
def test_a_text_that_is_no_number_of_the_dtype_is_named(
    dtype, text, is_bag, tmp_path
):
    (tmp_path / "a").write_text(f'y,x\n"a\nb",1\n,1\n,"{text}"\n,2\n')

    with pytest.raises(Exception, match=r"/a:5: x is '"):
        read(tmp_path / "a", Bag(dtype, ";") if is_bag else dtype)


@pytest.mark.parametrize("is_bag", [False, True])
@pytest.mark.parametrize(
    ("dtype", "text"), [(d, text) for d in GOOD for text in GOOD[d]]
)
def test_a_number_is_read_as_it_is(dtype, text, is_bag, tmp_path):
    (tmp_path / "a").write_text(f"y,x\n,1\n,{text}\n")
    kind = Bag(dtype) if is_bag else dtype

    value = np.dtype(dtype).type(GOOD[dtype][text]).item()
    bag = [value] if text else []
    wanted = [[1], bag] if is_bag else [1, value]
    assert read(tmp_path / "a", kind) == wanted


GOOD_FILES = {
    "byte order mark": "\ufeffx,y\na,1\nb,2\n",
    "quotes": '"x","y"\n"a",1\n"b","2"\n',
    "windows": "x,y\r\na,1\r\nb,2\r\n",
    "no last line break": "x,y\na,1\nb,2",
    "empty lines at the end": "x,y\na,1\nb,2\n\n\r\n\n",
}
FIELDS = [
    "\u2028",
    "\x85",
    "a,b",
    'say ""so""',
    "two\nlines",
    " ",
    "\x0c",
    "\0",
]
BAD_FILES = {
    "more fields": ("x,y\na,1\nann,1,500\n", 3, "too many fields: 3"),
    "fewer fields": ("x,y\na,1\nann\n", 3, "too few fields: 1"),
    "more, then fewer": ("x,y\na,1,2\nb\n", 2, "too many fields"),
    "an empty line": ("x,y\na,1\n\nb,2\n", 3, "an empty line"),
    "open quote": ('x,y\na,1\n"b,2\nc,3\n', 3, "quotes out of place"),
    "quote inside": ('x,y\na,1\nb"c,2\n', 3, "quotes out of place"),
    "text after quote": ('x,y\na,1\n"b"c,2\n', 3, "quotes out of place"),
    "old line breaks": ("x,y\na,1\rb,2\n", 2, "carriage return"),
    "one and none": ("x,y\na,1\rb,2\n\nc,3\n", 2, "carriage return"),
    "repeated name": ("x,x\na,b\n", 1, "has 2 columns 'x'"),
    "no such name": ("z,y\na,b\n", 1, "no column 'x'"),
    "no name": ("\n\nx,y\na,b\n", 1, "no column 'x'"),
    "nothing": ("", None, "an empty file"),
    "only a mark": ("\ufeff", None, "an empty file"),
    "UTF-16": ("\xff\xfex\0", 1, "no column 'x'"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", GOOD_FILES)
def test_a_sound_csv_file_gives_its_rows(name, packed, tmp_path):
    text = GOOD_FILES[name].encode()
    (tmp_path / "a[1]").write_bytes(gzip.compress(text) if packed else text)

    assert read(tmp_path / "a[1]", "string") == [b"a", b"b"]


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_keeps_every_character(field, tmp_path):
    (tmp_path / "a").write_text(f'y,x\n1,"{field}"\n2,b\n', newline="")

    wanted = field.replace('""', '"').encode()
    assert read(tmp_path / "a", "string") == [wanted, b"b"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_csv_file_is_named_with_its_line(name, packed, tmp_path):
    text, line, said = BAD_FILES[name]
    content = text.encode()
    (tmp_path / "a").write_bytes(gzip.compress(content) if packed else content)

    with pytest.raises(
        Exception, match=f"/a{'' if line is None else f':{line}'}: .*{said}"
    ):
        read(tmp_path / "a", "string")


def test_lines_of_later_blocks_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_BLOCK_BYTES", 5000)
    rows = "".join(f'{i},"{"l" * 40}\n"\n' for i in range(400))
    (tmp_path / "a").write_text(f"x,y\n{rows}1_0,\n")

    with pytest.raises(Exception, match=r"/a:802: x is '1_0'"):
        read(tmp_path / "a", "int64")
    (tmp_path / "a").write_text(f"x,y\n{rows}")
    assert read(tmp_path / "a", "int64") == list(range(400))


@pytest.mark.parametrize("cut", [1, 9, 20, 40])
@pytest.mark.parametrize("form", ["csv", "tfrecord"])
def test_a_cut_gzip_file_is_no_shorter_file(form, cut, tmp_path):
    path = tmp_path / "a"
    if form == "csv":
        rows = "".join(f"{i}\n" for i in range(500))
        path.write_bytes(gzip.compress(f"x\n{rows}".encode()))
    else:
        write_records(path, [[i] for i in range(500)], "GZIP")
    path.write_bytes(path.read_bytes()[:-cut])

    with pytest.raises(Exception, match=r"/a:?\d*: .*(cut off|read further)"):
        read(path, "int64", form)


def write_records(path, rows, compression=""):
    with tf.io.TFRecordWriter(str(path), compression) as file:
        for row in rows:
            values = tf.train.Int64List(value=row)
            feature = {"x": tf.train.Feature(int64_list=values)}
            features = tf.train.Features(feature=feature)
            example = tf.train.Example(features=features)
            file.write(example.SerializeToString())


@pytest.mark.parametrize("is_bag", [False, True])
@pytest.mark.parametrize("value", [2**40, 2**31, -(2**31) - 1])
def test_a_records_number_beyond_int32_is_named(value, is_bag, tmp_path):
    write_records(tmp_path / "a", [[1], [], [value], [2]])
    kind = Bag("int32") if is_bag else "int32"

    with pytest.raises(Exception, match=f"/a: record 3: column 'x' is {value}"):
        read(tmp_path / "a", kind, "tfrecord")


@pytest.mark.parametrize("compression", ["", "gzip", "GZIP", "zlib"])
def test_compressed_records_are_read(compression, tmp_path):
    write_records(tmp_path / "a", [[7]], compression.upper())

    given = [compression] + [""] * (compression.upper() == "GZIP")
    for one in given:
        assert read(tmp_path / "a", "int64", "tfrecord", compression=one) == [7]


def test_texts_of_records_keep_every_byte(tmp_path):
    feature = tf.train.Feature(
        bytes_list=tf.train.BytesList(value=[f.encode() for f in FIELDS])
    )
    features = tf.train.Features(feature={"x": feature})
    with tf.io.TFRecordWriter(str(tmp_path / "a[1]")) as file:
        file.write(tf.train.Example(features=features).SerializeToString())

    wanted = [[field.encode() for field in FIELDS]]
    assert read(tmp_path / "a[1]", Bag("string"), "tfrecord") == wanted


def test_records_that_are_not_as_described_are_named(tmp_path):
    path = tmp_path / "a"
    write_records(path, [[1], [2, 3]])
    with pytest.raises(Exception, match="/a: record 2: .*2 values; name it as"):
        read(path, "int64", "tfrecord")
    with pytest.raises(Exception, match="/a: record 1: .*x"):
        read(path, "string", "tfrecord")
    with pytest.raises(ArgumentError, match="'GZIP' or 'ZLIB'; got 'lz4'"):
        read(path, "int64", "tfrecord", compression="lz4")
    with pytest.raises(DataError, match="/a: no record has 'z'"):
        tfembed.data.tfrecord(path, {"z": "int64"}, 2)
    for cut in 1, 5, 20:
        whole = path.read_bytes()
        (tmp_path / "b").write_bytes(whole[:-cut])
        with pytest.raises(Exception, match="/b: record [12].* is cut off"):
            read(tmp_path / "b", Bag(), "tfrecord")


PARQUET = [
    (pa.array([1, None]), "int32", [1, 0]),
    (pa.array([2**25]), "float32", [2.0**25]),
    (pa.array([2**62], pa.uint64()), "float64", [2.0**62]),
    (pa.array([True, None]), "int64", [1, 0]),
    (pa.array([2.0]), "int64", [2]),
    (pa.array([None, None]), "int64", [0, 0]),
    (pa.array([None]), "string", [b""]),
    (pa.array([None]), Bag(), [[]]),
    (pa.array([b"\xff\0", None]), "string", [b"\xff\0", b""]),
    (pa.array([b"ab"], pa.binary(2)), "string", [b"ab"]),
    (pa.array(["a", "b"]).dictionary_encode(), "string", [b"a", b"b"]),
    (pa.array([[1, 2]], pa.list_(pa.int64(), 2)), Bag(), [[1, 2]]),
    (pa.array([[1], [], None], pa.large_list(pa.int8())), Bag(), [[1], [], []]),
    *(
        (pa.array([[1], [], None], view(pa.int8())), Bag(), [[1], [], []])
        for view in [getattr(pa, "list_view", None)]
        if view is not None  # Of pyarrow 16 on.
    ),
    (pa.array([["a"], [None]]), Bag("string"), [[b"a"], [b""]]),
    (pa.array([[None], []]), Bag(), [[0], []]),
    (pa.array([2**53 + 1, None], pa.decimal128(20)), "int64", [2**53 + 1, 0]),
    (pa.array([Decimal("1.5")]), "float32", [1.5]),
    (pa.array([2**24 + 1]), "float32", "row 1: .*16777217.*fit float32"),
    (pa.array([2.0**24 + 1]), "float32", "row 1: .*16777217.*fit float32"),
    (pa.array([Decimal("1.5")]), "int64", "row 1: .*1.5.*int64"),
    (pa.array([0, 2**53 + 1]), "float64", "row 2: .*fit float64"),
    (pa.array([0, 2**63 - 1]), "float32", "row 2: .*fit float32"),
    (pa.array([1e39]), "float32", "row 1: .*1e.39"),
    (pa.array([0.0, 2.5]), "int64", "row 2: .*2.5.*int64"),
    (pa.array([np.nan]), "int64", "row 1: .*nan"),
    (pa.array([2.0**63]), "int64", "row 1: "),
    (pa.array([2**63], pa.uint64()), "int64", "row 1: .*9223372036854775808"),
    (pa.array([[], [1, 2**31]]), Bag("int32"), "row 2: .*2147483648"),
    (pa.array([[16777217]]), Bag("float32"), "row 1: .*16777217"),
    (pa.array([[1.0], [2.0, -1e39]]), Bag("float32"), "row 2: .*-1e.39"),
    (pa.array([[0.5, np.inf]]), Bag("int64"), "row 1: .*0.5"),
    (pa.array(FIELDS), "string", [field.encode() for field in FIELDS]),
    (pa.array([FIELDS]), Bag("string"), [[f.encode() for f in FIELDS]]),
    (pa.array([0], pa.date32()), "int64", "of date32.*numbers, texts and"),
    (pa.array([0], pa.timestamp("us")), "int64", "of timestamp"),
    (pa.array([0], pa.time32("s")), "int64", "of time32"),
    (pa.array([0], pa.duration("s")), "int64", "of duration"),
    (pa.array([{"a": 1}]), "int64", "of struct"),
    (pa.array([[{"a": 1}]]), Bag(), "of list<.*struct"),
    (pa.array([[[1]]]), Bag(), "of list<.*list"),
]
if hasattr(pa, "string_view"):  # pyarrow 14 cannot write these.
    PARQUET += [
        (pa.array([np.float16(1.5), None], pa.float16()), "float32", [1.5, 0]),
        (pa.array(["a", None], pa.string_view()), "string", [b"a", b""]),
        (pa.array([b"\xff", None], pa.binary_view()), "string", [b"\xff", b""]),
    ]


@pytest.mark.parametrize(
    ("array", "kind", "wanted"), PARQUET, ids=[str(p[0].type) for p in PARQUET]
)
def test_a_parquet_column_gives_its_values_or_is_named(
    array, kind, wanted, tmp_path
):
    from pyarrow import parquet

    parquet.write_table(pa.table({"x": array}), tmp_path / "a")

    if isinstance(wanted, list):
        assert read(tmp_path / "a", kind, "parquet") == wanted
    else:
        with pytest.raises(Exception, match=f"/a: .*{wanted}"):
            read(tmp_path / "a", kind, "parquet")


def test_a_name_that_two_parquet_columns_have_is_refused(tmp_path):
    from pyarrow import parquet

    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"])
    parquet.write_table(twice, tmp_path / "a")

    with pytest.raises(DataError, match="/a: has 2 columns 'x'"):
        read(tmp_path / "a", "int64", "parquet")


HEADERS = [
    "user_id,item_id,rating,timestamp",
    "userId,movieId,rating,timestamp",
]
RATINGS = {
    "byte order mark": "\ufeffuser,item,rating\n1,2,3\n",
    "other order": "movie_id,user_id,rating\n2,1,3\n",
    "any order": "timestamp,rating,item_id,user_id\n9,3,2,1\n",
    "quotes": '"userId","movieId","rating"\n"1","2","3"\n',
    "marked": "# user,item,rating\n1,2,3\n",
    "empty lines": "1::2::3::4\n\n\n",
    "no line break": "1\t2\t3",
    "another column": "user,item,rating,title\n1,2,3,\u2028\n",
    "signs and zeros": "+1,02,3.\n",
    "windows": "user,item,rating\r\n1,2,3\r\n\r\n",
}
BAD_RATINGS = {
    "unknown names": (
        "film,user,rating\n2,1,3\n",
        "a:1: has no column 'item_id'",
    ),
    "two users": ("user,userId,item,rating\n1,1,2,3\n", "a:1: has 2 columns"),
    "no id": (",user,item,rating\n0,1_0,2,3\n", "a:2: user_id is '1_0'"),
    "an id too large": (f"1,{2**63},3\n", "a:1: item_id is .*int64"),
    "nan": ("1,2,nan\n", "a:1: rating is 'nan'"),
    "more fields": ("1,2,3\n1,2,3,4\n", "a:2: too many"),
    "a field in two": ("1::2::3\n1::2\x1f3\n", "a:2: too few"),
    "text after quote": ('user,item,rating\n"1"2,2,3\n', "a:2: quotes"),
    "open quote": ('user,item,rating\n"1,2,3\n', "a:2: quotes"),
    "an open name": ('user,item,"rating\n1,2,3\n', "a:1: the header cannot"),
    "fewer fields": ("1,2,3\n1,2\n", "a:2: too few"),
    "an empty line": ("1,2,3\n\n1,2,3\n", "a:2: an empty line"),
    "old line breaks": ("1,2,3\n1,2\r,3\n", "a:2: a carriage return"),
    "a fraction": ("1,2,3\n1.5,2,3\n", "a:2: user_id is '1.5'"),
    "hexadecimal": ("1,0x10,3\n", "a:1: item_id is '0x10'"),
    "an infinite rating": ("1,2,3\n1,2,inf\n", "a:2: rating is 'inf'"),
    "a large rating": ("1,2,1e39\n", "a:1: rating is '1e39'.*fit into"),
    "only a header": ("user,item,rating\n\n", "a: the file has no ratings"),
    "nothing": ("", "a: an empty file"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", RATINGS)
def test_a_sound_file_of_ratings_is_read(name, packed, tmp_path):
    text = RATINGS[name].encode()
    path = tmp_path / "a[1]"
    path.write_bytes(gzip.compress(text) if packed else text)

    skipped = SkippedLines()
    ratings = tfembed.data.read_ratings(path, skipped=skipped)

    assert (ratings.users[0], ratings.items[0], ratings.values[0]) == (1, 2, 3)
    assert skipped.count == 0


@pytest.mark.parametrize("name", BAD_RATINGS)
def test_a_bad_file_of_ratings_is_named_with_its_line(name, tmp_path):
    text, said = BAD_RATINGS[name]
    (tmp_path / "a").write_text(text)

    with pytest.raises(DataError, match=said):
        tfembed.data.read_ratings(tmp_path / "a")


def test_a_header_is_no_bad_line_to_skip(tmp_path):
    (tmp_path / "a").write_text("film,user,rating\n2,1,3\n")

    with pytest.raises(DataError, match="a:1: has no column 'item_id'"):
        tfembed.data.read_ratings(tmp_path / "a", skipped=SkippedLines())


def test_damage_of_ratings_is_no_bad_line_to_skip(tmp_path):
    (tmp_path / "a").write_bytes(gzip.compress(b"1,2,3\n" * 9)[:-5])

    with pytest.raises(DataError, match="a:10: cannot be read further"):
        tfembed.data.read_ratings(tmp_path / "a", skipped=SkippedLines())


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("text", [str(2**63), "-1e3", "12_34", "nan", ""])
def test_an_id_of_histories_that_is_none_is_named(text, place, tmp_path):
    fields = ["1", "2", "3", "4"]
    fields[place] = text
    (tmp_path / "a").write_text(f"1,2,3,4\n{','.join(fields)}\n")

    with pytest.raises(DataError, match="a:2: (user|item)_id is"):
        tfembed.data.read_histories(tmp_path / "a")


@pytest.mark.parametrize("header", HEADERS)
def test_times_of_histories_are_exact(header, tmp_path):
    start = 1_700_000_000_000_000_000
    rows = f"1,30,5,{start + 2}\n1,10,5,{start}\n1,20,5,{start + 1}\n"
    (tmp_path / "a").write_text(f"{header}\n{rows}")

    assert tfembed.data.read_histories(tmp_path / "a") == {1: [10, 20, 30]}


@pytest.mark.parametrize("time", ["nan", "inf", "1e400", "1_0", "", "now"])
def test_a_time_that_is_none_is_named(time, tmp_path):
    (tmp_path / "a").write_text(f"1,2,3,4.5\n1,2,3,{time}\n")

    with pytest.raises(DataError, match="a:2: timestamp is"):
        tfembed.data.read_histories(tmp_path / "a")


def criteo_row(name="label", text="1"):
    fields = dict.fromkeys(FIELD_NAMES, "2") | {"label": "1", name: text}
    return "\t".join(fields.values()) + "\n"


CRITEO = {
    "byte order mark": ("\ufeff", "", "17"),
    "windows": ("", "\r\n\n", "17"),
    "quotes": ("", "\n", '"17'),
    "separators": ("", "\n", "\u2028\x85\x0c,\0"),
}
BAD_CRITEO = {
    "I1": ["12_34", "0x10", "nan", "-inf", "1e400", str(2**53 + 1), "1,5"],
    "label": ["", "2", "nan", "1_0", "true"],
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", CRITEO)
def test_a_sound_log_of_criteo_keeps_its_fields(name, packed, tmp_path):
    start, end, field = CRITEO[name]
    text = f"{start}{criteo_row('C1', field)}{end}".encode()
    path = tmp_path / "a[1]"
    path.write_bytes(gzip.compress(text) if packed else text)

    (log,) = find_logs(str(path))
    (rows,) = tables.sift(read_log(log))

    assert rows.columns["C1"].tolist() == [field.encode()]
    assert rows.columns["I13"].tolist() == [2]


@pytest.mark.parametrize(
    ("name", "text"),
    [(name, text) for name in BAD_CRITEO for text in BAD_CRITEO[name]],
)
def test_a_field_of_criteo_that_is_no_number_is_named(name, text, tmp_path):
    (tmp_path / "a").write_text(criteo_row() + criteo_row(name, text))

    (log,) = find_logs(str(tmp_path / "a"))
    with pytest.raises(DataError, match=f"a:2: {name} is '"):
        list(tables.sift(read_log(log)))


@pytest.mark.parametrize("names", [FIELD_NAMES[:-1], ("label", *FIELD_NAMES)])
def test_a_header_of_criteo_has_each_column_once(names, tmp_path):
    (tmp_path / "a").write_text("\t".join(names) + "\n" + criteo_row())

    with pytest.raises(DataError, match=f"a:1: the header has {len(names)} "):
        find_logs(str(tmp_path / "a"))


def test_criteo_of_other_categories_needs_no_last_line_break(tmp_path):
    row = "\t".join(["1", *["2"] * 13, *["17"] * 26])
    (tmp_path / "a").write_text(f"\ufeff{row}\n{row}")

    (batch,) = tfembed.data.criteo(tmp_path / "a", 4)

    assert batch[0]["C26"].numpy().tolist() == [b"17", b"17"]
    (tmp_path / "a").write_text(f"{row}\n{row.replace('17', '1_7', 1)}x\n\n\n")
    assert len(list(tfembed.data.criteo(tmp_path / "a", 4))) == 1


def test_counts_of_criteo_are_exact(tmp_path):
    """The kind: whole numbers that a dtype rounds. float64 holds all counts."""
    row = "\t".join(["1", str(2**24 + 1), *["2"] * 12, *["a"] * 26])
    (tmp_path / "a").write_text(f"{row}\n")

    (batch,) = tfembed.data.criteo(tmp_path / "a", 4)

    assert batch[0]["integers"].numpy()[0, 0] == 2**24 + 1
    (tmp_path / "a").write_text(row.replace(str(2**24 + 1), str(2**53 + 1)))
    with pytest.raises(Exception, match="a:1: I1 is '9007199254740993'"):
        list(tfembed.data.criteo(tmp_path / "a", 4))


def test_an_empty_separator_is_refused(tmp_path):
    (tmp_path / "a").write_text("x\n1\n")

    with pytest.raises(ArgumentError, match="column 'x' is empty; it is one"):
        read(tmp_path / "a", Bag(separator=""))


def test_pyarrow_is_named_where_it_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)

    for call in (
        lambda: tfembed.data.csv("a", {"x": "int64"}, 2),
        lambda: tfembed.data.criteo("a", 2),
        lambda: tfembed.data.read_ratings("a"),
        lambda: tfembed.data.read_histories("a"),
    ):
        with pytest.raises(
            tfembed.errors.UnsupportedError, match="pip install pyarrow"
        ):
            call()
