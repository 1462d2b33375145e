"""Changes of checkpoints and raw files whose checksums hold, by chance.

Each is a function of a random generator and of what it changes; a seed tells
everything.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import struct

from checkpoint import bundle_files
from checkpoint.bundle_files import varint

NUMBERS = [
    *(0, 1, 2, 3, 7, 8, 16, 47, 48, 255, 256, 4095, 65536),
    *(2**28, 2**30, 2**31 - 1, 2**31, 2**32 - 1, 2**32 + 7, 2**40, 2**48),
    *(2**62, 2**63 - 1, -1, -2, -8, -(2**31), -(2**63)),
]
DTYPES = [*range(31), 101, 107, 109, 120, 121, 200, 2**31 - 1, -1]


def number(rng, of=0):
    """One that readers like least, or near to what is there."""
    if rng.random() < 0.4:
        return of + rng.choice([-8, -2, -1, 1, 2, 8])
    return rng.choice(NUMBERS)


def some_bytes(rng, content):
    """The same with a few bytes changed, taken out or put in."""
    content = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(content) + 1)
        kind = rng.random()
        if kind < 0.5 and place < len(content):
            content[place] = rng.choice(
                [0, 1, 127, 128, 255, content[place] ^ 1]
            )
        elif kind < 0.75:
            del content[place : place + rng.randint(1, 9)]
        else:
            content[place:place] = rng.randbytes(rng.randint(1, 9))
    return bytes(content)


# What one entry of an index says.


def change_entry(rng, bundle):
    name = rng.choice(sorted(bundle.entries))
    entry = bundle.entries[name]
    field = rng.randrange(9)
    if field == 0:
        entry.dtype = rng.choice(DTYPES)
    elif field == 1 and entry.shape.dim:
        dim = rng.choice(entry.shape.dim)
        dim.size = clamp(number(rng, dim.size))
    elif field == 2:
        entry.shape.dim.add(size=clamp(number(rng)))
    elif field == 3 and entry.shape.dim:
        del entry.shape.dim[rng.randrange(len(entry.shape.dim))]
    elif field == 4:
        entry.shard_id = clamp(number(rng, entry.shard_id), 31)
    elif field == 5:
        entry.offset = clamp(number(rng, entry.offset))
    elif field == 6:
        entry.size = clamp(number(rng, entry.size))
    elif field == 7:
        entry.shape.unknown_rank = True
    else:  # The bytes of another tensor.
        other = bundle.entries[rng.choice(sorted(bundle.entries))]
        entry.offset, entry.size = other.offset, other.size
        entry.crc32c = other.crc32c
    return f"entry {name!r} field {field}"


def clamp(value, bits=63):
    return max(-(2**bits), min(2**bits - 1, value))


def change_slices(rng, bundle):
    sliced = [n for n, e in bundle.entries.items() if e.slices]
    name = rng.choice(sorted(sliced or bundle.entries))
    entry = bundle.entries[name]
    kind = rng.randrange(6)
    if kind == 0 or not entry.slices:
        part = entry.slices.add()
        for dim in entry.shape.dim:
            part.extent.add(start=clamp(number(rng)), length=dim.size)
    elif kind == 1:
        del entry.slices[rng.randrange(len(entry.slices))]
    elif kind == 2:
        entry.slices.add().CopyFrom(rng.choice(entry.slices))
    else:
        part = rng.choice(entry.slices)
        if kind == 3 or not part.extent:
            part.extent.add(start=clamp(number(rng)))
        elif kind == 4:
            extent = rng.choice(part.extent)
            extent.start = clamp(number(rng, extent.start))
        else:
            extent = rng.choice(part.extent)
            extent.length = clamp(number(rng, extent.length))
        if rng.random() < 0.5:  # With an entry to go with it.
            extents = [(e.start, e.length) for e in part.extent]
            own = bundle_files.Entry(dtype=entry.dtype)
            for _, length in extents:
                own.shape.dim.add(size=length)
            key = bundle_files.slice_name(name, extents)
            bundle.entries.setdefault(key, own)
    return f"slices of {name!r} kind {kind}"


def change_names(rng, bundle):
    name = rng.choice(sorted(bundle.entries))
    kind = rng.randrange(4)
    if kind == 0:
        del bundle.entries[name]
    elif kind == 1:
        bundle.entries[some_bytes(rng, name) or b"x"] = bundle.entries.pop(name)
    elif kind == 2:
        other = rng.choice(sorted(bundle.entries))
        entries = bundle.entries
        entries[name], entries[other] = entries[other], entries[name]
    else:
        bundle.entries[rng.randbytes(rng.choice([1, 9, 3000]))] = (
            bundle.entries[name]
        )
    return f"name {name!r} kind {kind}"


def change_header(rng, bundle):
    kind = rng.randrange(4)
    if kind == 0:
        bundle.header.num_shards = clamp(number(rng, 2), 31)
    elif kind == 1:
        bundle.header.endianness = rng.choice([1, 2, 77])
    elif kind == 2:
        bundle.header.version.min_consumer = rng.choice([2, 2**31 - 1, -1])
    else:
        bundle.header.version.bad_consumers.append(1)
    return f"header kind {kind}"


# What tensors have, with the right checksums.


def change_content(rng, bundle):
    stored = [n for n in bundle.entries if bundle.is_stored(n)]
    if not stored:
        return "nothing"
    name = rng.choice(sorted(stored))
    content = bytearray(bundle.bytes_of(name))
    if bundle.entries[name].dtype == bundle_files.STRING:
        return change_strings(rng, bundle, name)
    for _ in range(rng.randint(1, 3)):
        width = rng.choice([1, 4, 8])
        place = rng.randrange(max(1, len(content) // width)) * width
        if rng.random() < 0.5:
            value = number(rng) & (256**width - 1)
            content[place : place + width] = value.to_bytes(width, "little")
        else:  # A key, or a row, twice.
            other = rng.randrange(max(1, len(content) // width)) * width
            content[place : place + width] = content[other : other + width]
    bundle.replace(name, bytes(content[: bundle.entries[name].size]))
    return f"content of {name!r}"


def change_strings(rng, bundle, name):
    strings = list(bundle.strings_of(name))
    if not strings:
        return "nothing"
    kind = rng.randrange(4)
    place = rng.randrange(len(strings))
    lengths = [len(s) for s in strings]
    if kind == 0:
        strings[place] = some_bytes(rng, strings[place])
        lengths = None
    elif kind == 1:
        lengths[place] = number(rng, lengths[place]) & (2**64 - 1)
    elif kind == 2:
        strings[place] = strings[rng.randrange(len(strings))]
        lengths = None
    else:
        strings[place] = strings[place] + rng.randbytes(rng.choice([30, 3000]))
        lengths = None
    bundle.replace_strings(name, strings, lengths)
    return f"strings of {name!r} kind {kind}"


LAYOUT_LINES = [
    *(b"dim -1", b"dim 99999999999", b"dim 3", b"dim", b"seed -1", b"seed 1"),
    *(b"seed 99999999999999999999", b"rule", b"rule \xff\xfe", b"rule adagrad"),
    *(b"slot accumulators nan", b"slot a b", b"slot  0.5", b"row_slot x 1"),
    *(b"slot accumulators 0.1", b"notes steps_ago", b"notes \xc3", b"notes x"),
    *(b"keys int32", b"keys int64", b"keys string", b"keys resource"),
    *(b"values half", b"values string", b"values variant", b"", b" ", b"\0"),
    *(b"tfembed.hash_table 4", b"tfembed.hash_table 3", b"slot /../keys 0"),
]


def change_layout(rng, bundle):
    layouts = [
        name
        for name in bundle.entries
        if name.endswith(b"/layout")
        and bundle.entries[name].dtype == bundle_files.STRING
        and bundle.is_stored(name)
    ]
    if not layouts:
        return change_content(rng, bundle)
    name = rng.choice(sorted(layouts))
    lines = bundle.strings_of(name)[0].split(b"\n")
    kind = rng.randrange(5)
    place = rng.randrange(len(lines))
    if kind == 0:
        lines[place] = rng.choice(LAYOUT_LINES)
    elif kind == 1:
        lines.insert(place, rng.choice(LAYOUT_LINES))
    elif kind == 2:
        del lines[place]
    elif kind == 3:
        lines[place] = some_bytes(rng, lines[place])
    else:
        lines.append(b"notes " + b"n" * rng.choice([10, 5000]))
    bundle.replace_strings(name, [b"\n".join(lines)])
    return f"layout {name!r} kind {kind}"


# The bytes of an index file, with the checksums of its blocks right.


def crafted_index(rng, bundle):
    """(what was done, the bytes of an index file)."""
    entries = bundle.texts()
    kind = rng.randrange(9)
    if kind == 0:
        name, text = entries.pop(rng.randrange(len(entries)))
        entries.append((name, some_bytes(rng, text)))
        entries.sort()
    elif kind == 1:
        rng.shuffle(entries)
    elif kind == 2:
        entries.append(rng.choice(entries))
    elif kind == 3:
        entries = entries[: rng.choice([0, 1])]
    content = bundle_files.index_file(
        entries or [(b"", b"")],
        per_block=rng.choice([1, 3, 8, 10**6]),
        interval=rng.choice([1, 2, 16, 10**6]),
    )
    if kind == 4:
        content = content[:-48] + bundle_files.footer(
            (number(rng, len(content)), number(rng)), (number(rng), number(rng))
        )
    elif kind == 5:
        block = some_bytes(rng, bundle_files.block(entries)[:-5])
        compressed = rng.choice([0, 0, 0, 1, 2])
        content = one_block(bundle_files.sealed(block, compressed))
    elif kind == 6:
        block = bundle_files.block(entries)
        handle = varint(number(rng)) + varint(number(rng, len(block) - 5))
        content = one_block(block, handle)
    elif kind == 7:
        content = content[: rng.randrange(len(content))]
    elif kind == 8:
        content = some_bytes(rng, content)
    return f"index kind {kind}", content


def one_block(block, handle=None):
    """An index file with one block of data, and perhaps another place of it."""
    handle = varint(0) + varint(len(block) - 5) if handle is None else handle
    index = bundle_files.block([(b"\xff", handle)], interval=1)
    return block + index + bundle_files.footer((len(block), len(index) - 5))


# Files as such.


def change_file(rng, path):
    """Has a file be another kind of thing, or shorter, or longer."""
    path = pathlib.Path(path)
    kind = rng.randrange(8)
    content = path.read_bytes()
    path.unlink()
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.mkdir()
    elif kind == 2:
        path.symlink_to(rng.choice(["/dev/zero", "/dev/null", "/nowhere"]))
    elif kind == 3:
        path.write_bytes(content[: rng.randrange(len(content) + 1)])
    elif kind == 4:
        path.write_bytes(content + rng.randbytes(rng.randint(1, 100)))
    elif kind == 5:  # A terabyte, of which nothing is on the disk.
        path.write_bytes(content)
        os.truncate(path, 2**40)
    elif kind == 6:
        path.write_bytes(b"")
    return f"file {path.name} kind {kind}"


def clear_folder(folder):
    """Removes all that is in a folder."""
    for path in pathlib.Path(folder).iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


BUNDLE_CHANGES = [
    *[change_entry] * 4,
    *[change_slices] * 2,
    change_names,
    change_header,
    *[change_content] * 3,
    *[change_layout] * 2,
]


def craft_checkpoint(rng, bundle, prefix):
    """Writes a changed copy of a checkpoint, and says what was changed."""
    bundle, done = bundle.copy(), []
    kind = rng.random()
    if kind < 0.75:
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            if bundle.entries:
                done.append(rng.choice(BUNDLE_CHANGES)(rng, bundle))
    bundle.write(prefix)
    if 0.75 <= kind < 0.93:
        what, content = crafted_index(rng, bundle)
        pathlib.Path(f"{prefix}.index").write_bytes(content)
        done.append(what)
    elif kind >= 0.93:
        files = [f"{prefix}.index", *bundle.paths(prefix)]
        done.append(change_file(rng, rng.choice(files)))
    return "; ".join(done)


# Raw files of rows.

MANIFEST_LINES = [
    *(
        b"dim 99999999",
        b"dim -1",
        b"keys string",
        b"values half",
        b"keys int32",
    ),
    *(b"save 0", b"save xyz", b"file -1 0 x", b"file 0 0 ../x", b"\xff\xfe"),
    *(b"file 9223372036854775807 0 x", b"tfembed.row_files 2", b"", b"x"),
]


def craft_row_files(rng, files, folder):
    """Writes a changed copy of raw files, {name: content}, into a folder."""
    files, done = dict(files), []
    manifest = next(name for name in files if name.startswith(".tfembed"))
    pairs = sorted(name for name in files if name != manifest)
    kind = rng.randrange(5)
    name = rng.choice(pairs)
    if kind == 0:
        del files[manifest]
        files[name] = some_bytes(rng, files[name])
    elif kind == 1:
        files[name] = some_bytes(rng, files[name])
        files[manifest] = with_sizes(files[manifest], files)
    elif kind == 2:
        lines = files[manifest].splitlines()[:-1]
        place = rng.randrange(len(lines))
        if rng.random() < 0.5:
            lines[place] = rng.choice(MANIFEST_LINES)
        else:
            lines.insert(place, rng.choice(MANIFEST_LINES))
        files[manifest] = with_end(lines)
    elif kind == 3:
        del files[manifest]
        files[name] = b"".join(
            struct.pack("<I", rng.choice([0, 3, 2**31, 2**32 - 1]))
            + rng.randbytes(3)
            for _ in range(rng.randint(1, 9))
        )
    done.append(f"row files kind {kind} of {name}")
    for file, content in files.items():
        (pathlib.Path(folder) / file).write_bytes(content)
    if kind == 4:
        file = rng.choice(sorted(files))
        if file != manifest and rng.random() < 0.5:
            (pathlib.Path(folder) / manifest).unlink()
        done.append(change_file(rng, pathlib.Path(folder) / file))
    return "; ".join(done)


def with_sizes(manifest, files):
    """A manifest with the sizes and checksums that files have."""
    lines = []
    for line in manifest.splitlines()[:-1]:
        if line.startswith(b"file "):
            name = line.split(b" ", 3)[3]
            content = files[name.decode()]
            crc = bundle_files.crc32c(content)
            line = b"file %d %08x %s" % (len(content), crc, name)
        lines.append(line)
    return with_end(lines)


def with_end(lines):
    body = b"\n".join(lines) + b"\n"
    return body + b"end %08x\n" % bundle_files.crc32c(body)
