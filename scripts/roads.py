"""Count the files that a reader opens on a road through the package, from imports and calls.

    python -m scripts.roads [TREE]    # prints each road's files, of this checkout or another

A road is a few stretches, each from one function to stations, functions that it leads to
(scripts/roads.yaml). To each the shortest way of calls is taken, through the fewest files, and
every file on it counts once. What is called on the way and leads to no station (errors, logs,
paths, types) is left out by that rule.

Calls are found in syntax trees. Names are followed through imports; methods through annotations,
constructors and assignments, and through a protocol to the classes that have its methods; a
function that is passed on counts as called by who passes it.
"""

import ast
import heapq
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from testkit import ROOT

PACKAGE = "bigbird_ja"
ROADS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))


class Code:
    """The functions, classes and globals of a package ("module:Class.method"), and their calls."""

    def __init__(self, root: Path) -> None:
        self.files: dict[str, str] = {}  # module -> path
        self._tree: dict[str, ast.AST] = {}  # of every function, class and global
        self._imported: dict[str, dict[str, str]] = defaultdict(dict)  # module -> name -> what
        self._known: dict[str, set[str]] = {}  # of a global or attribute: the classes it may be of
        self._calls: dict[str, set[str]] = {}
        for path in sorted((root / PACKAGE).rglob("*.py")):
            self._read(path, path.relative_to(root).as_posix())
        self._follow_protocols()
        for name in [name for name, tree in self._tree.items() if _sets_attributes(tree)]:
            Scope(self, name)  # learns of what class `self.name` may be

    def _read(self, path: Path, name: str) -> None:
        module = name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        self.files[module] = name.partition("/")[2]
        tree = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                for one in node.names:
                    self._imported[module][one.asname or one.name] = f"{node.module}.{one.name}"
        self._define(tree.body, f"{module}:")

    def _define(self, body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._tree[prefix + node.name] = node
            elif isinstance(node, ast.ClassDef):
                self._tree[prefix + node.name] = node
                self._define(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        self._tree[prefix + target.id] = node

    def find(self, module: str, dotted: str) -> str:
        """Return the "module:name", or the module, that a dotted name means in a module, or ""."""
        first, _, rest = dotted.partition(".")
        if f"{module}:{first}" in self._tree:
            target = f"{module}:{dotted}"
            return target if target in self._tree else f"{module}:{first}" if not rest else ""
        if first in self._imported[module]:
            return self._absolute(self._imported[module][first] + (f".{rest}" if rest else ""))
        return ""

    def _absolute(self, dotted: str) -> str:
        parts = dotted.split(".")
        for cut in range(len(parts), 0, -1):
            module, rest = ".".join(parts[:cut]), ".".join(parts[cut:])
            if module in self.files:
                return self.find(module, rest) if rest else module
        return ""

    def member(self, kind: str, name: str) -> set[str]:
        """Return the attribute of a class, or of a module, if there is one."""
        target = self.find(kind, name) if kind in self.files else f"{kind}.{name}"
        return {target} & self._tree.keys()

    def kinds(self, name: str) -> set[str]:
        """Return the classes that a global, attribute or call of a function may be of."""
        if name not in self._known:
            self._known[name] = set()
            tree, module = self._tree[name], name.partition(":")[0]
            if isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._known[name] = self.annotated(module, tree.returns, name)
            elif isinstance(tree, ast.ClassDef):
                self._known[name] = {name}
            elif isinstance(tree, ast.AnnAssign):
                self._known[name] = self.annotated(module, tree.annotation, name)
        return self._known[name]

    def annotated(self, module: str, annotation: ast.AST | None, owner: str) -> set[str]:
        """Return the package's classes that an annotation names."""
        result = set()
        for node in ast.walk(annotation) if annotation else ():
            if isinstance(node, (ast.Name, ast.Attribute)):
                target = self.find(module, ast.unparse(node))
                tree = self._tree.get(target)
                if isinstance(tree, ast.ClassDef):
                    result.add(target)
                elif target != owner and isinstance(tree, ast.Assign):  # an alias of types
                    result |= self.annotated(target.partition(":")[0], tree.value, target)
        return result

    def calls(self, name: str) -> set[str]:
        """Return what a function, class or global refers to."""
        if name not in self._calls:
            self._calls[name] = set()
            tree = self._tree[name]
            if isinstance(tree, ast.ClassDef):  # who makes one runs these
                self._calls[name] |= {
                    f"{name}.{node.name}"
                    for node in tree.body
                    if isinstance(node, ast.FunctionDef) and node.name.startswith("__")
                }
            else:
                self._calls[name] |= Scope(self, name).references()
            self._calls[name] |= self._behind.get(name, set())
        return self._calls[name]

    def _follow_protocols(self) -> None:
        """Lead each method of a protocol or base class to those that stand in for it."""
        self._behind: dict[str, set[str]] = defaultdict(set)
        classes = {
            name: tree for name, tree in self._tree.items() if isinstance(tree, ast.ClassDef)
        }
        methods = {
            name: {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
            for name, tree in classes.items()
        }
        for name, tree in classes.items():
            is_protocol = any("Protocol" in ast.unparse(base) for base in tree.bases)
            for other, theirs in methods.items():
                bases = [ast.unparse(b).rpartition(".")[2] for b in classes[other].bases]
                if other != name and (
                    (is_protocol and methods[name] and methods[name] <= theirs)
                    or name.rpartition(":")[2] in bases
                ):
                    for one in methods[name] & theirs:
                        self._behind[f"{name}.{one}"].add(f"{other}.{one}")

    def named(self, end: str) -> str:
        """Return the one full name that ends so.

        Raises:
            LookupError: none does, or several.
        """
        names = [name for name in self._tree if name.endswith((f".{end}", f":{end}"))]
        if len(names) != 1:
            raise LookupError(f"{end}: {', '.join(names) or 'nothing has that name'}")
        return names[0]

    def way(self, start: str, end: str) -> list[str]:
        """Return the calls that lead from one to the other through the fewest files.

        Raises:
            LookupError: none do.
        """
        best: dict[str, tuple[int, int, str]] = {start: (0, 0, "")}  # files, calls, caller
        waiting = [(0, 0, start)]
        while waiting:
            files, calls, name = heapq.heappop(waiting)
            if name == end:
                way = [end]
                while way[-1] != start:
                    way.append(best[way[-1]][2])
                return way
            for other in sorted(self.calls(name)):
                is_next = other.partition(":")[0] != name.partition(":")[0]
                cost = (files + is_next, calls + 1, name)
                if other not in best or cost < best[other]:
                    best[other] = cost
                    heapq.heappush(waiting, (*cost[:2], other))
        raise LookupError(f"{start} does not lead to {end}")

    def road(self, stretches: Iterable[Mapping[str, str]]) -> dict[str, None]:
        """Return the files of a road in the order of the calls, as paths in the package.

        Raises:
            LookupError: a station has another name now, or the road does not lead to it.
        """
        return {
            self.files[step.partition(":")[0]]: None
            for stretch in stretches
            for station in stretch["to"].split()
            for step in reversed(self.way(self.named(stretch["from"]), self.named(station)))
        }


def _sets_attributes(tree: ast.AST) -> bool:
    return isinstance(tree, ast.FunctionDef) and any(
        isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        for node in ast.walk(tree)
    )


class Scope:
    """What the names in one function, method or global mean."""

    def __init__(self, code: Code, name: str) -> None:
        self._code, self._tree = code, code._tree[name]
        self._module = name.partition(":")[0]
        self._local: dict[str, set[str]] = defaultdict(set)
        owner = name.rpartition(".")[0]
        if isinstance(code._tree.get(owner), ast.ClassDef):
            self._local["self"] = {owner}
        for _ in range(2):  # a name may be used in a loop before the line that sets it
            for node in ast.walk(self._tree):
                self._learn(node, name)

    def _learn(self, node: ast.AST, owner: str) -> None:
        if isinstance(node, ast.arg):
            self._local[node.arg] |= self._code.annotated(self._module, node.annotation, owner)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, self.kinds(node.value))
        elif isinstance(node, ast.withitem) and node.optional_vars:
            self._bind(node.optional_vars, self.kinds(node.context_expr))

    def _bind(self, target: ast.AST, kinds: set[str]) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._local[node.id] |= kinds
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                for kind in self.kinds(node.value):  # self.name = ...
                    self._code._known.setdefault(f"{kind}.{node.attr}", set()).update(kinds)
                    self._code._tree.setdefault(f"{kind}.{node.attr}", ast.Pass())

    def kinds(self, node: ast.AST | None) -> set[str]:
        """Return the package's classes that an expression may be of; of a container, its items'."""
        if isinstance(node, ast.Name):
            if node.id in self._local:
                return self._local[node.id]
            target = self._code.find(self._module, node.id)
            return {target} & self._code.files.keys()
        if isinstance(node, (ast.Call, ast.Attribute)):
            named = node.func if isinstance(node, ast.Call) else node
            return set().union(*map(self._code.kinds, self.meant(named)))
        children = ast.iter_child_nodes(node) if node is not None else ()
        return set().union(*map(self.kinds, children))

    def meant(self, node: ast.AST) -> set[str]:
        """Return the functions, classes, globals and attributes that a name may mean."""
        if isinstance(node, ast.Name) and node.id in self._local:
            return set()
        if isinstance(node, (ast.Name, ast.Attribute)):
            target = self._code.find(self._module, ast.unparse(node))
            if target or isinstance(node, ast.Name):
                return {target} & self._code._tree.keys()
            return set().union(*(self._code.member(k, node.attr) for k in self.kinds(node.value)))
        return set()

    def references(self) -> set[str]:
        """Return all that the function or global refers to."""
        return set().union(*map(self.meant, ast.walk(self._tree)))


def main() -> int:
    """Print the roads; return 1 where a station was not found."""
    code = Code(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    status = 0
    for name, road in ROADS.items():
        try:
            files = sorted(code.road(road["stretches"]))
            print(f"{name}: {len(files)} files (at most {road['most']}): {', '.join(files)}")
        except LookupError as error:
            print(f"{name}: {error}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
