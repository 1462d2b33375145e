"""Makes docs/ops.md from the registrations of the ops and their own docs.

python scripts/op_tables.py            writes the page
python scripts/op_tables.py --check    exits 1 where the page is not up to date
"""

from __future__ import annotations

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "ops.md"
HEAD = """# The ops

Made by `python scripts/op_tables.py` from the registrations in `cc/ops`; a test
compares. Kernels lie in `cc/kernels`, XLA kernels in `cc/xla`. `Tfembed>` goes before
every name.
"""
REGISTRATION = re.compile(
    r'REGISTER_OP\("Tfembed>(\w+)"\)(.*?)(?=REGISTER_OP|\Z)', re.DOTALL
)
PORT = re.compile(r'\.(Input|Output|Attr)\(\s*((?:"[^"]*"\s*)+)\)')
DOC = re.compile(
    r'\.Doc\((?:R"doc\(\n?(.*?)\)doc"|((?:\s*"[^"]*")+))\)', re.DOTALL
)


def page() -> str:
    """The text of docs/ops.md."""
    parts = [HEAD]
    for path in sorted((ROOT / "cc" / "ops").glob("*_ops.cc")):
        ops = REGISTRATION.findall(path.read_text())
        if not ops:
            continue
        parts.append(f"\n## {path.stem}\n")
        parts += [_op(name, body) for name, body in ops]
    return "".join(parts)


def _op(name: str, body: str) -> str:
    ports: dict[str, list[str]] = {"Input": [], "Output": [], "Attr": []}
    for kind, text in PORT.findall(body):
        ports[kind].append("".join(re.findall(r'"([^"]*)"', text)))
    inputs, outputs = (", ".join(ports[kind]) for kind in ("Input", "Output"))
    lines = [f"\n**{name}** `({inputs}) -> ({outputs})`\n"]
    if ports["Attr"]:
        lines.append(f"`{'; '.join(ports['Attr'])}`\n")
    found = DOC.search(body)
    if found is None:
        raise LookupError(f"Op {name} has no .Doc; say there what it does.")
    text = found[1] or "".join(re.findall(r'"([^"]*)"', found[2]))
    return "".join([*lines, "\n", text.strip(), "\n"])


def main() -> int:
    """Writes the page, or with --check says whether it is up to date."""
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page())
        return 0
    if PAGE.read_text() == page():
        return 0
    print("docs/ops.md is not up to date: python scripts/op_tables.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
