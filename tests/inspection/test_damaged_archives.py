"""Damaged files of Keras, through every command: right, or one line and status 2.

Files are damaged as bytes, and archives crafted member by member: encrypted,
deflated, renamed, names that are not UTF-8, deep JSON. `TFEMBED_FUZZ_ARCHIVES` sets how many (40).
"""

from __future__ import annotations

import json
import os
import random
import warnings
import zipfile

import keras
import numpy as np
import pytest

import tfembed
from checkpoint import crafted_files
from tfembed.inspection import command
from tfembed.saved.saved_tables import open_saved

COUNT = int(os.environ.get("TFEMBED_FUZZ_ARCHIVES", "40"))

NAMES = ["../x", "/etc/x", "a\0b", "", "assets/", "config.json/", "é" * 200]
COMMANDS = [
    [],
    ["--verify"],
    ["--key", "3"],
    ["--top", "norm"],
    ["--table", "layers/embedding_1/vars/0"],
    ["--html", "asked.html"],
    ["--table", "users", "--to", "asked.csv"],
    ["--table", "layers/embedding_1/vars/0", "--to", "asked.npz"],
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A `.keras` and a `.weights.h5` file with a table and stock weights."""
    own = tfembed.keras.layers.Embedding(2, key_dtype="int64", name="users")
    inputs = keras.Input([], dtype="int64")
    stock = keras.layers.Embedding(5, 2)(inputs)
    model = keras.Model(inputs, keras.layers.Add()([own(inputs), stock]))
    own.table.upsert([3, 4], [[1.0, 2.0], [3.0, 4.0]])
    folder = tmp_path_factory.mktemp("files")
    model.save(folder / "m.keras")
    model.save_weights(folder / "m.weights.h5")
    return model, folder


def damaged(rng, content):
    """The same, cut off, with a run of ones, or with a few bytes changed."""
    place, kind = rng.randrange(len(content)), rng.random()
    if kind < 0.2:
        return content[:place]
    if kind < 0.4:
        ones = min(rng.choice([1, 2, 4, 8]), len(content) - place)
        return content[:place] + b"\xff" * ones + content[place + ones :]
    return crafted_files.some_bytes(rng, content)


def crafted_archive(rng, path, whole):
    """Writes an archive with one fault that a program may make."""
    with zipfile.ZipFile(whole) as old:
        members = {name: old.read(name) for name in old.namelist()}
    fault = rng.randrange(8)
    kind = rng.choice(
        [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA]
    )
    deep = rng.choice([10, 100_000])
    with zipfile.ZipFile(
        path, "w", kind if fault == 0 else zipfile.ZIP_STORED
    ) as new:
        for name, content in members.items():
            if fault == 1 and name == "config.json":
                content = b"[" * deep + b"]" * deep
            elif fault == 2 and name == "config.json":
                content = rng.choice(
                    [b"", b"\xff", b"{", b"null", b"[1]", b"1e999"]
                )
            elif fault == 3 and name.endswith((".h5", ".index")):
                content = damaged(rng, content)
            elif fault == 4 and rng.random() < 0.3:
                continue
            elif fault == 5 and name == "config.json":
                layers = [
                    {
                        "class_name": "E",
                        "config": rng.choice([None, 1, "x", []]),
                    }
                ]
                content = json.dumps({"config": {"layers": layers}}).encode()
            elif fault == 7 and rng.random() < 0.3:
                name = rng.choice([*NAMES, *members])
            new.writestr(zipfile.ZipInfo(name), content, new.compression)
    if fault == 6:  # Encrypted, or a name that is not UTF-8.
        content = bytearray(path.read_bytes())
        flags = rng.choice([1, 0x800, 0x801])
        for sign, at in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
            place = content.find(sign)
            while place >= 0:
                content[place + at] |= flags & 0xFF
                content[place + at + 1] |= flags >> 8
                place = content.find(sign, place + 4)
        content = content.replace(b"config.json", b"conf\xff\xfe.json"[:11])
        path.write_bytes(content)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_damaged_files_of_keras_are_refused_or_read(
    files, tmp_path, monkeypatch, capsys
):
    _, folder = files
    monkeypatch.chdir(tmp_path)
    statuses = []
    for seed in range(COUNT):
        rng = random.Random(seed)
        name = rng.choice(["m.keras", "m.weights.h5"])
        path = tmp_path / name
        if name == "m.keras" and rng.random() < 0.6:
            crafted_archive(rng, path, folder / name)
        else:
            whole = (folder / name).read_bytes()
            path.write_bytes(damaged(rng, whole))
        sound = str(folder / name)
        compare = [["--diff", name, sound], ["--diff", sound, name]]
        for arguments in [[name, *each] for each in COMMANDS] + compare:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                status = command.main(["inspect", *arguments])
            _, err = capsys.readouterr()
            assert status in (0, 1, 2), (seed, arguments, err)
            assert err.count("\n") == (status == 2), (seed, arguments, err)
            statuses.append(status)
            asked = tmp_path / arguments[-1]
            for one in tmp_path.iterdir():
                assert one in (path, asked), (seed, arguments)
                if one != path:
                    one.unlink()
        path.unlink()
    assert statuses.count(2) > COUNT and statuses.count(0) > COUNT // 2


@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5"])
def test_weights_of_stock_layers_can_be_asked_for(files, name, capsys):
    model, folder = files
    (weights,) = (
        layer.get_weights()[0]
        for layer in model.layers
        if type(layer) is keras.layers.Embedding
    )
    saved = open_saved(folder / name)
    path = "layers/embedding_1/vars/0"

    found = saved[path].find([4, 0])
    np.testing.assert_array_equal(found[0].row, weights[4])
    np.testing.assert_array_equal(found[1].row, weights[0])
    assert command.main(["inspect", str(folder / name)]) == 0
    assert path in capsys.readouterr().out.replace("\n ", "")
    assert list(saved) == ["users"]
    saved.check()
    assert saved.has_checksums == (name == "m.keras")
