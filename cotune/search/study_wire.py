"""What a lane and the driver send each other of an Optuna study: values and exceptions, pickled."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

from cotune import by_value
from cotune.errors import TrialFailed
from cotune.plain import is_plain

# How many causes, one raised from the next, are sent with an exception.
CAUSES = 8


def encode(value: Any) -> bytes:
    """Pickles a value; objects that the other side cannot import are pickled by value."""
    # The second takes 50 us even for plain values, which are nearly all that is sent.
    return pickle.dumps(value) if is_plain(value) else by_value.dumps(value)


def encode_error(error: BaseException, depth: int = CAUSES) -> bytes:
    """Pickles an exception and its causes, as completely as possible.

    The exception itself, else its class, arguments and attributes; else what it says, as an exception of Python's own
    from which its class is derived, which is also for a receiver that cannot import the class.
    """
    cause, text = error.__cause__, None
    with contextlib.suppress(Exception):
        text = str(error)
    blamed = encode_error(cause, depth - 1) if cause is not None and depth else None
    return pickle.dumps((_packed(error, text, depth), _plainly(type(error), text), blamed))


def _packed(error: BaseException, text: str | None, depth: int) -> bytes:
    kind = type(error)
    changed: list[bytes] = []
    args = _members(error, depth) if isinstance(error, BaseExceptionGroup) else (text,)
    for candidate in (error, (kind, error.args, vars(error)), (kind, error.args, {}), (kind, args, {})):
        with contextlib.suppress(Exception):
            blob = encode(candidate)
            again = _made_again(blob)
            if text is None or str(again) == text:
                return blob
            # The class builds its message from an argument, and has now built it from the finished message.
            changed.append(blob)
    return changed[0] if changed else encode(None)


def _plainly(kind: type[BaseException], text: str | None) -> bytes:
    said = str(text) if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}: {text}"
    for base in kind.__mro__:
        # Some, such as SyntaxError, make their message of more than that.
        with contextlib.suppress(Exception):
            blob = pickle.dumps((base, (said,), {}))
            if base.__module__ == "builtins" and said in str(_made_again(blob)):
                return blob
    return pickle.dumps(None)


def _members(group: BaseExceptionGroup[BaseException], depth: int) -> tuple[str, list[BaseException]]:
    """The arguments of an exception group, with a stand-in for each member that cannot be pickled."""
    found = [decode_error(encode_error(member, depth - 1)) if depth else None for member in group.exceptions]
    return group.message, [
        again or TrialFailed(repr(type(one))) for again, one in zip(found, group.exceptions, strict=True)
    ]


def decode_error(blob: bytes) -> BaseException | None:
    """The exception that `encode_error` pickled; None if it could not be."""
    packed, plain, cause = pickle.loads(blob)
    try:
        error = _made_again(packed)
    except Exception:
        # Its class cannot be imported here: an objective may have changed `sys.path`.
        error = _made_again(plain)
    if error is not None and cause is not None:
        error.__cause__ = decode_error(cause)
    return error


def _made_again(blob: bytes) -> BaseException | None:
    packed = pickle.loads(blob)
    if packed is None or isinstance(packed, BaseException):
        return packed
    kind, args, attributes = packed
    # Not by calling the class: many exceptions take other arguments than they keep in `args`.
    error: BaseException = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error
