"""Values that a declared type does not take, drawn from the type.

A type is what `storage.decode` decodes into: a dataclass, `msgspec.Struct` or TypedDict. Cases
are (name, changed object); a field that is added to a declaration is covered without a line here.
"""

from typing import Any

from msgspec import NODEFAULT, inspect

Path = tuple[Any, ...]
GONE = object()

_OF_ANOTHER_TYPE = {
    inspect.IntType: ("3", 1.5, True, [], {}),
    inspect.FloatType: ("3", True, [], {}),
    inspect.StrType: (3, True, [], {}),
    inspect.BoolType: ("true", 1, [], {}),
    inspect.ListType: (3, "x", {}),
    inspect.VarTupleType: (3, "x", {}),
    inspect.DictType: (3, "x", []),
    inspect.DateType: (3, "x", []),
    inspect.EnumType: ("nonsense", 3, []),
}
_OBJECTS = (inspect.DataclassType, inspect.StructType, inspect.TypedDictType)


def wrong(kind, sample):
    """`sample`, changed in one place so that it is no `kind` any more, in every way.

    Args:
        kind: the type.
        sample: a plain object of it; keys that it lacks are tried at the top level of each object.
    """
    for path, node in _places(inspect.type_info(kind), sample, ()):
        at = ".".join(map(str, path)) or "the whole"
        for value in _wrong_values(node):
            yield f"{at} is {value!r}", changed(sample, path, value)
        for field in node.fields if isinstance(node, _OBJECTS) else ():
            if field.required and field.default is NODEFAULT:
                name = field.encode_name
                yield f"without {at}.{name}", changed(sample, (*path, name), GONE)


def changed(value, path, new):
    """A copy with one place replaced, or gone."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    if path[1:]:
        copy[path[0]] = changed(copy[path[0]], path[1:], new)
    elif new is GONE:
        del copy[path[0]]
    else:
        copy[path[0]] = new
    return copy


def _places(node, value, path):
    """Every declared place and its type, of lists and maps the first item of the sample."""
    yield path, node
    inner = _without_none(node)
    if isinstance(inner, _OBJECTS):
        for field in inner.fields if isinstance(value, dict) else ():
            name = field.encode_name
            yield from _places(field.type, value.get(name), (*path, name))
    elif isinstance(inner, inspect.DictType) and value:
        key = next(iter(value))
        yield from _places(inner.value_type, value[key], (*path, key))
    elif isinstance(inner, (inspect.ListType, inspect.VarTupleType)) and value:
        yield from _places(inner.item_type, value[0], (*path, 0))


def _wrong_values(node):
    inner = _without_none(node)
    if isinstance(inner, (inspect.AnyType, inspect.UnionType)):
        return
    if inner is node:
        yield None
    kind = inspect.DictType if isinstance(inner, _OBJECTS) else type(inner)
    yield from _OF_ANOTHER_TYPE[kind]
    low, high = getattr(inner, "ge", None), getattr(inner, "le", None)
    if low is not None:
        yield low - max(1, abs(low))
    if getattr(inner, "gt", None) is not None:
        yield inner.gt
    if high is not None:
        yield high * 2 + 1
    if isinstance(inner, (inspect.IntType, inspect.FloatType)):
        yield float("nan")
        yield float("inf")
        yield 10**400


def _without_none(node):
    """The type beside None in a union of the two; `Annotated`'s extras aside."""
    while isinstance(node, inspect.Metadata):
        node = node.type
    if isinstance(node, inspect.UnionType):
        others = [t for t in node.types if not isinstance(t, inspect.NoneType)]
        if len(others) == 1 and len(node.types) == 2:
            return _without_none(others[0])
    return node
