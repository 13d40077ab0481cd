"""What a lane and the driver send each other of an Optuna study: values and exceptions, pickled."""

from __future__ import annotations

import contextlib
import pickle
from enum import Enum
from typing import Any

from cotune.errors import TrialFailed
from cotune.plain import is_plain
from cotune.script import by_value


class _Method(Enum):
    METHOD = "a method"


# Stands for an attribute that is called.
METHOD = _Method.METHOD
# How many causes, one raised from the next, are sent with an exception.
CAUSES = 8


def encode(value: Any) -> bytes:
    """Pickles a value; objects that the other side cannot import are pickled by value."""
    # The second takes 50 us even for plain values, which are nearly all that is sent.
    return pickle.dumps(value) if is_plain(value) else by_value.dumps(value)


def encode_error(error: BaseException, depth: int = CAUSES) -> bytes:
    """Pickles an exception and its causes, as completely as possible.

    The exception itself, else its class, arguments and attributes; else what it says, as an exception of Python's own
    from which its class is derived. The receiver, which may lack what can be loaded here, takes the first that it can.
    """
    cause, text = error.__cause__, None
    with contextlib.suppress(Exception):
        text = str(error)
    blamed = encode_error(cause, depth - 1) if cause is not None and depth else None
    return pickle.dumps((_forms(error, text, depth), blamed))


def _forms(error: BaseException, text: str | None, depth: int) -> list[bytes]:
    kind = type(error)
    least = _members(error, depth) if isinstance(error, BaseExceptionGroup) else (text,)
    candidates = [error, (kind, error.args, vars(error)), (kind, error.args, {}), (kind, least, {})]
    true, changed = [], []
    while candidates:
        with contextlib.suppress(Exception):
            blob = encode(candidates.pop(0))
            again = _made_again(blob)
            if text is None or str(again) == text:
                true.append(blob)
                # Of those that hold its attributes, which may be large, one is enough.
                del candidates[:-2]
            else:
                # The class builds its message from an argument, and has now built it from the finished message.
                changed.append(blob)
    return [*true, *changed[:1], *_plainly(kind, text)]


def _plainly(kind: type[BaseException], text: str | None) -> list[bytes]:
    said = str(text) if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}: {text}"
    for base in kind.__mro__:
        # Some, such as SyntaxError, make their message of more than that.
        with contextlib.suppress(Exception):
            blob = pickle.dumps((base, (said,), {}))
            if base.__module__ == "builtins" and said in str(_made_again(blob)):
                return [blob]
    return []


def _members(group: BaseExceptionGroup[BaseException], depth: int) -> tuple[str, list[bytes]]:
    """The arguments of an exception group, each member encoded by itself, below the depth a stand-in for it."""
    members = [member if depth else TrialFailed(repr(type(member))) for member in group.exceptions]
    return group.message, [encode_error(member, depth - 1) for member in members]


def decode_error(blob: bytes) -> BaseException | None:
    """The exception that `encode_error` pickled; None if it could not be."""
    forms, cause = pickle.loads(blob)
    for form in forms:
        # Its class may not be found here: an objective may have changed `sys.path`.
        with contextlib.suppress(Exception):
            error = _made_again(form)
            if cause is not None:
                _put(error, "__cause__", decode_error(cause))
            return error
    return None


def _made_again(form: bytes) -> BaseException:
    packed = pickle.loads(form)
    if isinstance(packed, BaseException):
        return packed
    kind, args, attributes = packed
    if issubclass(kind, BaseExceptionGroup):
        message, members = args
        args = message, [decode_error(one) if isinstance(one, bytes) else one for one in members]
    # Not by calling the class: many exceptions take other arguments than they keep in `args`.
    error: BaseException = kind.__new__(kind, *args)
    _put(error, "args", args)
    error.__dict__.update(attributes)
    return error


def _put(error: BaseException, name: str, value: Any) -> None:
    """Sets an attribute of an exception even if its class lets nothing be set, such as a frozen dataclass."""
    vars(BaseException)[name].__set__(error, value)
