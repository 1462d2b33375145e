"""A checkpoint's files, taken apart and put together again, for tests.

Everything can be changed in between; the checksums are made right as it is
written. `docs/formats/hash_table.md` says what is in it.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import struct

from tensorflow.core.protobuf import tensor_bundle_pb2

Entry = tensor_bundle_pb2.BundleEntryProto
Header = tensor_bundle_pb2.BundleHeaderProto

MAGIC = 0xDB4775248B80FB57
STRING = 7


def _crc_table():
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


_CRC = _crc_table()


def crc32c(data, start=0):
    """CRC-32C, as it is."""
    crc = start ^ 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked(crc):
    """A checksum as TensorFlow's files have it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(number):
    number &= 2**64 - 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def take_varint(data, at):
    """(number, the place behind it)."""
    number = shift = 0
    while True:
        byte = data[at] if at < len(data) else 0
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def block(entries, interval=16):
    """The bytes of a block, with the trailer that has its checksum."""
    return _block(tuple(entries), interval)


@functools.lru_cache(1 << 12)  # Most blocks of many crafted files are alike.
def _block(entries, interval):
    out, restarts, last = bytearray(), [], b""
    for i, (name, text) in enumerate(entries):
        shared = 0
        if i % interval == 0:
            restarts.append(len(out))
        else:
            while (
                shared < min(len(name), len(last))
                and name[shared] == last[shared]
            ):
                shared += 1
        out += varint(shared) + varint(len(name) - shared) + varint(len(text))
        out += name[shared:] + text
        last = name
    restarts = restarts or [0]
    out += b"".join(struct.pack("<I", place) for place in restarts)
    out += struct.pack("<I", len(restarts))
    return sealed(bytes(out))


def sealed(content, kind=0):
    """A block's content with its trailer."""
    content += bytes([kind])
    return content + struct.pack("<I", masked(crc32c(content)))


def footer(index, meta=(0, 0)):
    """The end of an index file, with the handle of its index block."""
    handles = b"".join(varint(number) for number in (*meta, *index))
    return handles.ljust(40, b"\0")[:40] + struct.pack("<Q", MAGIC)


def index_file(entries, *, per_block=8, interval=16):
    """An index file with these (name, text), in the order given."""
    out, handles = bytearray(), []
    for begin in range(0, len(entries), per_block):
        some = entries[begin : begin + per_block]
        content = block(some, interval)
        handles.append(
            (some[-1][0], varint(len(out)) + varint(len(content) - 5))
        )
        out += content
    place = len(out)
    content = block(handles, interval=1)
    return bytes(out + content + footer((place, len(content) - 5)))


def index_entries(data):
    """The (name, text) of an index file that is whole."""
    at = len(data) - 48
    for _ in range(2):
        _, at = take_varint(data, at)
    offset, at = take_varint(data, at)
    size, _ = take_varint(data, at)
    found = []
    for _, handle in _block_entries(data[offset : offset + size]):
        offset, at = take_varint(handle, 0)
        size, _ = take_varint(handle, at)
        found += _block_entries(data[offset : offset + size])
    return found


def _block_entries(content):
    (restarts,) = struct.unpack("<I", content[-4:])
    end, at, name, found = len(content) - 4 * (restarts + 1), 0, b"", []
    while at < end:
        shared, at = take_varint(content, at)
        more, at = take_varint(content, at)
        size, at = take_varint(content, at)
        name = name[:shared] + content[at : at + more]
        found.append((name, content[at + more : at + more + size]))
        at += more + size
    return found


@dataclasses.dataclass
class Bundle:
    """All of a checkpoint.

    Attributes:
      header: of the index.
      entries: by the tensors' names.
      data: the bytes of the data files.
    """

    header: Header
    entries: dict[bytes, Entry]
    data: list[bytearray]

    @classmethod
    def load(cls, prefix):
        """The content of the files `prefix`.*."""
        path = pathlib.Path(prefix)
        index = path.with_name(path.name + ".index").read_bytes()
        (_, head), *rest = index_entries(index)
        return cls(
            Header.FromString(head),
            {name: Entry.FromString(text) for name, text in rest},
            [
                bytearray(file.read_bytes())
                for file in sorted(path.parent.glob(path.name + ".data-*"))
            ],
        )

    def copy(self):
        return Bundle(
            Header.FromString(self.header.SerializeToString()),
            {
                name: Entry.FromString(entry.SerializeToString())
                for name, entry in self.entries.items()
            },
            [bytearray(data) for data in self.data],
        )

    def texts(self):
        """The (name, text) of the index, sorted."""
        return [
            (b"", self.header.SerializeToString()),
            *(
                (name, entry.SerializeToString())
                for name, entry in sorted(self.entries.items())
            ),
        ]

    def is_stored(self, name):
        """Whether bytes of the data files are those of an entry, still whole."""
        entry = self.entries[name]
        n = 1
        for dim in entry.shape.dim:
            n *= dim.size
        return (
            not entry.slices
            and 0 <= entry.shard_id < len(self.data)
            and entry.offset >= 0
            and entry.size > 0
            and entry.offset + entry.size <= len(self.data[entry.shard_id])
            and n >= 0
            and (entry.dtype != STRING or n + 4 <= entry.size)
        )

    def bytes_of(self, name):
        entry = self.entries[name]
        data = self.data[entry.shard_id]
        return bytes(data[entry.offset : entry.offset + entry.size])

    def replace(self, name, content, crc=None):
        """Gives a tensor other bytes, at the end of its file."""
        entry = self.entries[name]
        data = self.data[entry.shard_id]
        entry.offset, entry.size = len(data), len(content)
        entry.crc32c = masked(crc32c(content) if crc is None else crc)
        data += content

    def replace_strings(self, name, strings, lengths=None):
        """Gives a tensor other strings, and says that these are so long."""
        lengths = [len(s) for s in strings] if lengths is None else lengths
        crc = 0
        for length in lengths:
            form = "<I" if length < 2**32 else "<Q"
            crc = crc32c(struct.pack(form, length), crc)
        middle = struct.pack("<I", masked(crc))
        crc = crc32c(middle + b"".join(strings), crc)
        head = b"".join(varint(length) for length in lengths)
        self.replace(name, head + middle + b"".join(strings), crc)

    def strings_of(self, name):
        content, n = self.bytes_of(name), 1
        for dim in self.entries[name].shape.dim:
            n *= dim.size
        lengths, at, strings = [], 0, []
        while len(lengths) < n and at < len(content):
            length, at = take_varint(content, at)
            lengths.append(length)
        at += 4
        for length in lengths:
            strings.append(content[at : at + length])
            at += length
        return strings

    def slice_rows(self, name, ends):
        """Stores a tensor as slices of rows, whose last one is the tensor's."""
        whole = self.entries[name]
        n, *widths = [dim.size for dim in whole.shape.dim]
        strings = whole.dtype == STRING
        rows = self.strings_of(name) if strings else self.bytes_of(name)
        each = 1 if strings else len(rows) // n
        full = Entry(dtype=whole.dtype, shape=whole.shape)
        for begin, end in zip([0, *ends], ends, strict=False):
            extents = [(begin, end - begin), *((0, width) for width in widths)]
            part = full.slices.add()
            own = Entry(dtype=whole.dtype, shard_id=whole.shard_id)
            for start, length in extents:
                part.extent.add(start=start, length=length)
                own.shape.dim.add(size=length)
            key = slice_name(name, extents)
            self.entries[key] = own
            content = rows[begin * each : end * each]
            if strings:
                self.replace_strings(key, content)
            else:
                self.replace(key, content)
        self.entries[name] = full

    def write(self, prefix):
        """Writes `prefix`.*; the checksums of blocks are right."""
        path = pathlib.Path(prefix)
        path.with_name(path.name + ".index").write_bytes(
            index_file(self.texts())
        )
        for file, data in zip(self.paths(prefix), self.data, strict=True):
            file.write_bytes(data)

    def paths(self, prefix):
        """The data files."""
        path = pathlib.Path(prefix)
        return [
            path.with_name(f"{path.name}.data-{i:05d}-of-{len(self.data):05d}")
            for i in range(len(self.data))
        ]


def slice_name(name, extents):
    """The name of a slice's entry: numbers as TensorFlow orders them."""
    out = b"\0" + _ordered_text(name) + _ordered_count(len(extents))
    for start, length in extents:
        out += _ordered_number(start) + _ordered_number(length)
    return out


def _ordered_count(number):
    content = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return bytes([len(content)]) + content


def _ordered_text(text):
    escapes = {0: b"\0\xff", 0xFF: b"\xff\0"}
    return b"".join(escapes.get(c, bytes([c])) for c in text) + b"\0\1"


def _ordered_number(number):
    """A signed number, seven bits a byte: as many ones lead as bytes follow."""
    length = 1
    while not -(1 << 7 * length - 1) <= number < 1 << 7 * length - 1:
        length += 1
    content = bytearray(number.to_bytes(length, "big", signed=True))
    content[0] ^= (0xFF00 >> length) & 0xFF
    return bytes(content)
