"""Mutants of a source: one small change each, made on its syntax tree.

Annotations, decorators, docstrings, classes, error messages and prefetches are skipped: what
remains is what the machine computes.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

Change = tuple[str, Callable[[], None]]

OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
CALLS = {"max": "min", "min": "max", "add": "sub", "sub": "add", "cos": "sin", "sin": "cos"}
PREFETCHES = "prefetch"  # prefix of the names of what prefetches
ORDERED = {"sub", "div", "fma", "part", "insert", "select"}  # their operands' order counts


@dataclass(frozen=True, slots=True)
class Mutant:
    """Change number `choice` of the tree's node number `node` (in the order of ast.walk); with an
    `axis`, only where that size exceeds the `largest` of cases."""

    file: str
    line: int
    text: str
    what: str
    node: int
    choice: int
    axis: str = ""
    largest: int = 0

    def __str__(self) -> str:
        beyond = f"  where {self.axis} > {self.largest:,}" if self.axis else ""
        return f"{self.file}:{self.line}: {self.what}{beyond}  in  {self.text}"

    def source(self, original: str) -> str:
        """The changed program."""
        tree = ast.parse(original)
        node = list(ast.walk(tree))[self.node]
        _, change = _changes(node)[self.choice]
        before = ast.unparse(node)
        change()
        if self.axis:
            text = f"({ast.unparse(node)}) if {self.axis} > {self.largest} else ({before})"
            tree = _Replaced(node, ast.parse(text, mode="eval").body).visit(tree)
        return ast.unparse(ast.fix_missing_locations(tree))


def mutants(file: str, source: str) -> Iterator[Mutant]:
    """Every mutant of a source, in a fixed order."""
    tree, lines = ast.parse(source), source.splitlines()
    spared = set(_spared(tree))
    for number, node in enumerate(ast.walk(tree)):
        if id(node) not in spared:
            for choice, (what, _) in enumerate(_changes(node)):
                line: int = node.lineno  # type: ignore[attr-defined]
                yield Mutant(file, line, lines[line - 1].strip(), what, number, choice)


def beyond(mutant: Mutant, tree: ast.Module, largest: Mapping[str, int]) -> Iterator[Mutant]:
    """The same change where a size exceeds those of cases: of an expression, by each size that its
    function has named before."""
    node = list(ast.walk(tree))[mutant.node]
    if not isinstance(node, ast.expr) or isinstance(getattr(node, "ctx", None), ast.Store):
        return
    functions = [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)]
    inside = [f for f in functions if any(node is n for b in f.body for n in ast.walk(b))]
    for axis in _sizes(inside[-1], node.lineno) if inside else ():
        if axis in largest:
            yield replace(mutant, axis=axis, largest=largest[axis])


def _sizes(function: ast.FunctionDef, line: int) -> list[str]:
    """A function's names for its arrays' sizes above this line: `tokens, hidden = x.shape`."""
    return [
        name.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and node.lineno < line
        if any(isinstance(n, ast.Attribute) and n.attr == "shape" for n in ast.walk(node.value))
        for target in node.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    ]


class _Replaced(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        found: ast.AST = self._new if node is self._old else self.generic_visit(node)
        return found


def _spared(tree: ast.Module) -> Iterator[int]:
    """Nodes without influence on the computation, by identity."""
    for node in ast.walk(tree):
        roots: list[ast.AST | None] = []
        match node:
            case ast.ClassDef() | ast.Raise() | ast.JoinedStr():
                roots = [node]
            case ast.stmt() if _only_prefetches(node):
                roots = [node]
            case ast.FunctionDef():
                roots = [*node.decorator_list, node.args, node.returns]
            case ast.AnnAssign():
                roots = [node.annotation]
        for root in filter(None, roots):
            yield from map(id, ast.walk(root))


def _only_prefetches(node: ast.stmt) -> bool:
    """Whether a statement only prefetches."""
    match node:
        case ast.FunctionDef(name=name):
            return name.startswith(PREFETCHES)
        case ast.Expr(value=ast.Call(func=ast.Name(id=name))):
            return name.startswith(PREFETCHES)
        case ast.Assign(value=ast.Call(func=ast.Name(id=name))):
            return name.startswith(PREFETCHES)
        case ast.If() | ast.For():
            return all(map(_only_prefetches, [*node.body, *node.orelse]))
    return False


def _changes(node: ast.AST) -> list[Change]:
    """The possible changes of one node: (description, how to make it in place)."""
    match node:
        case ast.BinOp():
            return [*_operator(node), *_swapped_sides(node)]
        case ast.AugAssign():
            return [*_operator(node), (f"drop {_text(node)}", _set(node, value=ast.Constant(0)))]
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            other = COMPARISONS[type(operator)]()
            return [_described(node, ops=[other])]
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            return [_described(node, op=other)]
        case ast.Constant(value=bool()):
            return []
        case ast.Constant(value=int(value)):
            return [_described(node, value=value + 1), _described(node, value=value - 1)]
        case ast.Constant(value=float(value)):
            changed = [_described(node, value=value + 1)]
            return [*changed, _described(node, value=value * 1.01)] if value else changed
        case ast.If() | ast.IfExp() | ast.While():
            text = _text(node.test)
            changes = [(f"never: if {text}", _set(node, test=ast.Constant(False)))]
            if not isinstance(node, ast.While):
                negated = ast.UnaryOp(ast.Not(), node.test)
                changes.append((f"if not ({text})", _set(node, test=negated)))
            return changes
        case ast.UnaryOp(op=ast.USub()):
            return [_described(node, op=ast.UAdd())]
        case ast.Subscript(slice=ast.Name() | ast.BinOp()):
            return [_described(node, slice=ast.BinOp(node.slice, ast.Add(), ast.Constant(1)))]
        case ast.Expr(value=ast.Call()):
            return [(f"drop {_text(node)}", _set(node, value=ast.Constant(None)))]
        case ast.Call(func=ast.Name(id=name)):
            return [*_renamed(node, name), *_swapped_arguments(node, name)]
        case ast.Call(func=ast.Attribute(attr=name)) if name in CALLS:
            return [_described(node, func=ast.Attribute(node.func.value, CALLS[name], ast.Load()))]
    return []


def _operator(node: ast.BinOp | ast.AugAssign) -> list[Change]:
    other = OPERATORS.get(type(node.op))
    return [_described(node, op=other())] if other else []


def _swapped_sides(node: ast.BinOp) -> list[Change]:
    if isinstance(node.op, (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod)):
        return [_described(node, left=node.right, right=node.left)]
    return []


def _renamed(node: ast.Call, name: str) -> list[Change]:
    if name in CALLS:
        return [_described(node, func=ast.Name(CALLS[name], ast.Load()))]
    return []


def _swapped_arguments(node: ast.Call, name: str) -> list[Change]:
    if name in ORDERED and len(node.args) > 1:
        *first, a, b = node.args
        return [_described(node, args=[*first, b, a])]
    return []


def _set(node: ast.AST, **fields: object) -> Callable[[], None]:
    def change() -> None:
        for name, value in fields.items():
            setattr(node, name, value)

    return change


def _described(node: ast.AST, **fields: object) -> Change:
    """The change, called `before -> after`."""
    before = {name: getattr(node, name) for name in fields}
    text, change = _text(node), _set(node, **fields)
    change()
    after = _text(node)
    _set(node, **before)()
    return f"{text} -> {after}", change


def _text(node: ast.AST) -> str:
    return ast.unparse(node).split("\n")[0]
