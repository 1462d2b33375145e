"""The house's order: who imports whom, one stem on every floor, file sizes.

The rooms and their height are read from docs/architecture.md.
"""

from __future__ import annotations

import ast
import importlib.util
import pathlib
import re
import statistics

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tfembed"
CC = ROOT / "cc"
GENERATED = {"_build_info"}
INCLUDE = re.compile(r'^\s*#include\s+["<]([^">]+)[">]', re.MULTILINE)

# What a room of cc/ may include, beside the standard library. Everything that
# the pattern does not match is a violation.
CC_ROOMS = {
    "core": re.compile(r"cc/core/|absl/|gtest/|gmock/|\w+(\.h)?$|sys/\w+\.h$"),
    "ops": re.compile(r"cc/ops/|absl/|tensorflow/|\w+(\.h)?$"),
    "sealed": re.compile(
        r"cc/(core/sealed|sealed)/|absl/strings/string_view\.h$|\w+(\.h)?$"
        r"|sys/\w+\.h$"
    ),
    "xla": re.compile(
        r"cc/(core|xla)/|cc/kernels/kernel_registration\.h$|absl/|tensorflow/|xla/|"
        r"\w+(\.h)?$"
    ),
    "kernels": re.compile(
        r"cc/(core|ops|kernels)/|absl/|tensorflow/|unsupported/|\w+(\.h)?$"
        r"|sys/\w+\.h$"
    ),
    "older_systems": re.compile(r"\w+(\.h)?$|sys/\w+\.h$"),
}


# Rooms of cc/core, in order of height: each includes only itself and those
# above it here. (An update rule's formula and the loops include each other's
# plain data, and admission keeps the keys that wait in an index like a table's:
# these rooms share a floor.)
CORE_FLOORS = (
    {"support"},
    {"rows"},
    {"simd", "optimizers"},
    {"policies", "table"},
    {"sealed", "step"},
    {"testing"},
)
RULES = CC / "core" / "optimizers" / "rules.inc"


def _rooms() -> list[str]:
    text = (ROOT / "docs" / "architecture.md").read_text()
    return re.findall(r"^ {4}tfembed/(\w+)", text, re.MULTILINE)


def _python_files() -> list[pathlib.Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if p.stem not in GENERATED)


def _cc_files() -> list[pathlib.Path]:
    return sorted(
        path for path in CC.rglob("*") if path.suffix in {".cc", ".h", ".inc"}
    )


def _room(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def _imported_rooms(path: pathlib.Path) -> set[str]:
    """Returns the rooms of tfembed that a module imports, at any depth.

    A string that names a room or what is in it counts: it is there to be
    imported.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = re.fullmatch(r"tfembed\.(\w+)[\w.]*", node.value)
            if named and named[1] in _rooms():
                names.add(node.value)
    return {
        name.split(".")[1]
        for name in names
        if name.startswith("tfembed.") and name.count(".")
    }


def _relative(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_room_stands_in_the_list():
    found = {_room(path) for path in _python_files()} - {"__init__"}
    missing = found - set(_rooms())

    assert not missing, f"docs/architecture.md does not list {sorted(missing)}"


@pytest.mark.parametrize("path", _python_files(), ids=_relative)
def test_a_room_imports_only_rooms_above_it(path):
    rooms = _rooms()
    room = _room(path)
    allowed = GENERATED | set(
        rooms if room == "__init__" else rooms[: rooms.index(room) + 1]
    )

    assert _imported_rooms(path) <= allowed


@pytest.mark.parametrize("path", _cc_files(), ids=_relative)
def test_cc_includes_only_what_its_room_may(path):
    allowed = CC_ROOMS[path.relative_to(CC).parts[0]]
    includes = INCLUDE.findall(path.read_text())

    assert [name for name in includes if not allowed.match(name)] == []


@pytest.mark.parametrize(
    "path", sorted((CC / "core").rglob("*")), ids=lambda path: path.name
)
def test_a_room_of_the_core_includes_only_rooms_above_it(path):
    if path.suffix not in {".cc", ".h", ".inc"}:
        return
    if path.stem.endswith(("_test", "_benchmark")):
        return
    allowed: set[str] = set()
    for floor in CORE_FLOORS:
        allowed |= floor
        if path.relative_to(CC / "core").parts[0] in floor:
            break
    includes = re.findall(r'#include "cc/core/(\w+)/', path.read_text())

    assert set(includes) <= allowed


def test_the_core_locks_by_locks_that_are_checked():
    allowed = {"cc/core/support/mutex.h"}
    unchecked = [
        _relative(path)
        for path in sorted((CC / "core").rglob("*"))
        if path.suffix in {".cc", ".h"}
        and path.parent.name != "testing"
        and not path.stem.endswith("_test")
        and re.search(
            r"std::(shared_)?mutex|std::condition_variable", path.read_text()
        )
    ]

    assert set(unchecked) == allowed


def _update_rules() -> dict[str, pathlib.Path]:
    """Returns the rule's name and file of each update rule in Python."""
    rules = {}
    for path in sorted((PACKAGE / "optimizers").glob("*.py")):
        for name in re.findall(r'rule_name\b.* = "(\w+)"', path.read_text()):
            rules[name] = path
    return rules


def test_a_kernel_is_registered_so_that_refused_memory_fails_it():
    # TensorFlow's own registration lets the exception end the process.
    bare = re.compile(r"^\s*REGISTER_(KERNEL_BUILDER|XLA_OP)\(", re.MULTILINE)
    sources = [*CC.rglob("*.cc"), *CC.rglob("*.h")]
    assert len(sources) > 100
    assert [path for path in sources if bare.search(path.read_text())] == []


def test_an_update_rule_has_one_stem_on_every_floor():
    rules = _update_rules()
    text = RULES.read_text()
    listed = re.findall(r"^TFEMBED_RULE\((\w+), \w+\)", text, re.MULTILINE)
    headers = re.findall(r'^#include ".*/(\w+)\.h"', text, re.MULTILINE)

    assert [path.stem for path in rules.values()] == list(rules)
    assert sorted(listed) == sorted(headers) == sorted(rules)
    assert all((RULES.parent / f"{rule}.h").exists() for rule in rules)


@pytest.mark.parametrize("rule", _update_rules())
def test_an_update_rule_is_tested_on_both_floors(rule):
    core = [path.read_text() for path in (CC / "core").rglob("*_test.cc")]
    python = [p.read_text() for p in (ROOT / "tests").rglob("test_*.py")]
    name = re.compile(rf"\b{rule.replace('_', '_?')}", re.IGNORECASE)

    assert any(name.search(text) for text in core)
    assert any(name.search(text) for text in python)


def test_the_ops_library_is_loaded_in_one_place():
    loaders = [
        _relative(path)
        for path in _python_files()
        if re.search(r"load_op_library|load_library\(|CDLL", path.read_text())
    ]

    assert loaders == ["tfembed/ops/library.py"]


def test_the_median_source_file_stays_under_250_lines():
    paths = _python_files() + _cc_files()
    for folder in ("tests", "examples", "benchmarks", "build_tools"):
        paths += sorted((ROOT / folder).rglob("*.py"))
    lines = [len(path.read_text().splitlines()) for path in paths]

    assert statistics.median(lines) < 250


def _names_of_files(path: pathlib.Path) -> set[str]:
    """The source files that a page, a docstring or a comment names."""
    name = r"(?:\.\./)*([\w/]+\.(?:py|cc|h|inc))"
    return set(re.findall(rf"[`(]{name}[`):]", path.read_text()))


def test_files_that_are_named_exist():
    pages = [ROOT / "docs/architecture.md", ROOT / "docs/lab/design.md"]
    folders = ("tfembed", "cc", "tests", "proof", "benchmarks", "scripts")
    known = {file.name for file in ROOT.glob("*.py")}
    known |= {
        "/".join(file.parts[-n:])
        for folder in folders
        for file in (ROOT / folder).rglob("*")
        if file.suffix in {".py", ".cc", ".h", ".inc"}
        for n in range(1, len(file.relative_to(ROOT).parts) + 1)
    }
    lost = {
        f"{_relative(path)}: {name}"
        for path in pages + _python_files() + _cc_files()
        for name in _names_of_files(path) - known
    }

    assert lost == set()


def test_the_page_of_ops_is_made_from_their_own_docs():
    spec = importlib.util.spec_from_file_location(
        "op_tables", ROOT / "scripts" / "op_tables.py"
    )
    op_tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(op_tables)

    assert (ROOT / "docs" / "ops.md").read_text() == op_tables.page(), (
        "docs/ops.md is not up to date: run python scripts/op_tables.py"
    )


def _modules() -> dict[str, pathlib.Path]:
    """The modules of tfembed by their dotted names."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in _python_files()
    }


def _imported_modules(path: pathlib.Path, known: set[str]) -> set[str]:
    """The modules of tfembed that a module imports when it is imported."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in known else node.module)
    return found & known


def test_no_modules_import_each_other_in_a_circle():
    modules = _modules()
    left = {
        name: _imported_modules(path, set(modules))
        for name, path in modules.items()
    }
    while free := {name for name, needs in left.items() if not needs}:
        left = {n: needs - free for n, needs in left.items() if n not in free}

    assert left == {}


# The seam to graphs that sessions run: where it may be asked for.
SESSION_GRAPHS = (
    "tfembed/ops/private.py",
    "tfembed/ops/session_graph.py",
    "tfembed/dynamic_embedding/tensorflow1/",
)


@pytest.mark.parametrize("path", _python_files(), ids=_relative)
def test_only_the_seam_asks_whether_a_session_runs_the_ops(path):
    if not _relative(path).startswith(SESSION_GRAPHS):
        assert "in_session_graph" not in path.read_text()


def _is_private(path: pathlib.Path) -> bool:
    return path.stem == "private" or path.parent.name == "private"


def _private_modules() -> list[pathlib.Path]:
    return [
        path
        for path in _python_files()
        if _is_private(path) and path.stem != "__init__"
    ]


def _defined(tree: ast.Module) -> set[str]:
    """The names without an underscore that a module makes itself."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(t.id for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(
            node.target, ast.Name
        ):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


# Questions that are answered by a walk over Python's frames, and private
# symbols. Lower these numbers where the code has become better.
MOST_WALKS = 11
MOST_SYMBOLS = 199


def _walks(path: pathlib.Path) -> list[ast.Call]:
    """The calls of a module that ask for running frames."""
    return [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "running_frames"
    ]


def test_frames_are_walked_over_in_one_place_for_few_questions():
    read = re.compile(r"\b_getframe\(|\bcurrentframe\(|\binspect\.stack\(")
    readers = [
        _relative(p) for p in _python_files() if read.search(p.read_text())
    ]

    assert readers == ["tfembed/ops/private.py"]
    assert sum(len(_walks(path)) for path in _python_files()) <= MOST_WALKS


def _entries(path: pathlib.Path) -> list[str]:
    """The names in the `ENDED_BY` of a module of private symbols."""
    (ended_by,) = [
        node.value
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "ENDED_BY"
    ]
    return [key.value for key in ended_by.keys]


def test_private_symbols_become_no_more():
    count = sum(len(_entries(path)) for path in _private_modules())

    assert count <= MOST_SYMBOLS


@pytest.mark.parametrize("path", _private_modules(), ids=_relative)
def test_an_entry_of_private_symbols_says_what_would_end_it(path):
    tree = ast.parse(path.read_text())
    entries = _entries(path)

    # A holder for values, and the list of versions, are no private symbols.
    own = _defined(tree) - {"ENDED_BY", "TRIED_ON", "Untracked"}
    assert sorted(entries) == sorted(own)


def test_entries_of_private_symbols_were_tried_on_the_supported_versions():
    from tfembed.ops import private

    constraints = sorted((ROOT / "constraints").glob("tf-*.txt"))
    versions = [
        re.search(r"^tensorflow(?:-cpu)?==(\S+)", path.read_text(), re.M)[1]
        for path in constraints
    ]

    assert list(private.TRIED_ON) == versions


@pytest.mark.parametrize("path", _python_files(), ids=_relative)
def test_only_private_modules_import_what_is_private(path):
    if _is_private(path):
        return
    found = re.findall(
        r"^\s*(?:from|import) (tensorflow\.python|keras\.src|tf_keras\.src)",
        path.read_text(),
        re.MULTILINE,
    )

    assert found == []


def _names_of_our_own() -> set[str]:
    """Every name that tfembed defines or assigns to: methods, attributes."""
    # Documented methods of named tuples.
    names: set[str] = {"_asdict", "_make"}
    for path in _python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(
                node.ctx, ast.Store
            ):
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return names


def test_only_private_modules_read_private_attributes_of_others():
    own = _names_of_our_own()
    found = {
        f"{_relative(path)}: {node.attr}"
        for path in _python_files()
        if not _is_private(path)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and re.match(r"_[^_]", node.attr)
        and node.attr not in own
    }

    assert found == set()


@pytest.mark.parametrize("path", _python_files(), ids=_relative)
def test_a_docstring_begins_with_a_subject_or_an_imperative(path):
    begun = [
        f"{getattr(node, 'name', 'module')}: {text[:60]}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module))
        and (text := ast.get_docstring(node) or "")
        and re.match(r"(What|Of|Those|That|Who|Whose|The same)\b", text)
    ]

    assert begun == []


# Bases with one child, and why each of them is one.
ONE_CHILD = {
    "ClusterHooks": "what is private of Keras lies in a private module",
    "ArgumentError": "a public name; most errors are of this class itself",
    "DynamicEmbeddingSaver": "TFRA's public name",
    "KVCreator": "TFRA's public name",
    "Estimator": "public; users and TPUEstimator derive from it",
    "RunConfig": "public; that of TPUs has a TPUConfig too",
    "RestrictPolicy": "users derive their own policies from it",
    "ShadowVariable": "TFRA's public class; Keras' layers have one of a table",
    "TrainableWrapper": "TFRA's public class; a ShadowVariable is one there",
}


def test_a_base_has_two_children_or_a_reason():
    children: dict[str, set[str]] = {}
    ours: set[str] = set()
    for path in _python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            ours.add(node.name)
            for base in node.bases:
                name = getattr(base, "id", getattr(base, "attr", None))
                children.setdefault(str(name), set()).add(node.name)
    alone = {
        name
        for name, found in children.items()
        if name in ours and len(found) == 1
    }

    assert alone <= set(ONE_CHILD), "a base with one child: merge the two"
    assert set(ONE_CHILD) <= alone, "no reason is needed any more"


# Rooms that are still flat.
FLAT = {"export", "keras", "ops", "tables"}


def test_a_large_room_has_at_most_eight_modules_at_its_root():
    crowded = set()
    for room in PACKAGE.iterdir():
        lines = sum(path.read_text().count("\n") for path in room.rglob("*.py"))
        if lines > 3000 and len(list(room.glob("*.py"))) > 8:
            crowded.add(room.name)

    assert crowded == FLAT


@pytest.mark.parametrize(
    "path, method",
    [
        ("embedding/tpu_embedding.py", "enqueue"),
        ("embedding/tpu_embedding.py", "apply_gradients"),
        ("dynamic_embedding/variables/variable.py", "upsert"),
        ("dynamic_embedding/variables/variable.py", "export"),
        ("tables/hash_table.py", "lookup"),
        ("tables/hash_table.py", "export"),
    ],
)
def test_a_public_class_has_its_methods_in_its_own_file(path, method):
    assert re.search(
        rf"^    def {method}\(", (PACKAGE / path).read_text(), re.M
    )
