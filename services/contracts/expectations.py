"""What a setting's type expects, in words for the person who typed it. Owns the texts; settings.py reads the values."""

import msgspec
from msgspec import inspect


def describe_refusal(variable: str, text: str, kind: inspect.Type) -> str | None:
    """Why text is not a value of kind, in one line that names the variable; None when kind has no words of its own."""
    if isinstance(kind, inspect.UnionType):
        some = [option for option in kind.types if not isinstance(option, inspect.NoneType)]
        return describe_refusal(variable, text, some[0]) if len(some) == 1 else None
    match kind:
        case inspect.IntType():
            return _describe_number(variable, text, kind, int, "a whole number")
        case inspect.FloatType():
            return _describe_number(variable, text, kind, float, "a number")
        case inspect.BoolType():
            return f"{variable}={text!r} is neither true nor false"
        case inspect.LiteralType(values=values):
            return f"{variable}={text!r} is not one of {', '.join(str(value) for value in values)}"
        case inspect.StrType(pattern=str(pattern)):
            return f"{variable}={text!r} does not match {pattern}"
    return None


def _describe_number(
    variable: str, text: str, kind: inspect.IntType | inspect.FloatType, number: type, noun: str
) -> str:
    limits = _describe_limits(kind)
    try:
        msgspec.convert(text, number, strict=False)
    except msgspec.ValidationError:
        return f"{variable}={text!r} is not {noun}" + (f"; it must be {limits}" if limits else "")
    return f"{variable} must be {limits or noun}, got {text}"


def _describe_limits(kind: inspect.IntType | inspect.FloatType) -> str:
    parts = []
    if kind.ge is not None and kind.le is not None:
        parts.append(f"from {_plain(kind.ge)} to {_plain(kind.le)}")
    else:
        bounds = (("at least", kind.ge), ("more than", kind.gt), ("at most", kind.le), ("less than", kind.lt))
        parts += [f"{words} {_plain(bound)}" for words, bound in bounds if bound is not None]
    if kind.multiple_of is not None:
        parts.append(f"a multiple of {_plain(kind.multiple_of)}")
    return " and ".join(parts)


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)
