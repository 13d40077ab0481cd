"""What the trials of a trainable were measured to need, kept from one run to the next.

<storage>/.profiles/<trainable>-<fingerprint>.json

A run begins with what earlier ones have measured, so that its first trials need not try a whole device. The brain takes
it for a hint: it is corrected by measuring like any other prediction, and given up once this run knows better.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import os
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotune.demand import Demand
from cotune.packer.prediction import KindModel

VERSION = 1
KEPT = 256
ENOUGH = 16

_PLAIN = (bool, int, float, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class _Sample:
    features: dict[str, float]
    persistent: int
    ephemeral: int
    busy: float | None
    seconds: float | None


class Profile:
    """Measurements of trials of one trainable on one kind of device.

    Args:
        path: Its file; None to remember nothing beyond this run.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._samples: list[_Sample] = []
        self._earlier = KindModel()
        self._count = 0
        self._measured = 0
        for sample in _read(path):
            self._teach(sample)

    def recall(self, features: Mapping[str, float], demand: Demand, seconds: float | None) -> None:
        """Takes in a trial of an earlier session of this run."""
        self._teach(_sample(features, demand, seconds))

    def _teach(self, sample: _Sample) -> None:
        self._count += 1
        demand = Demand(sample.persistent, sample.ephemeral, sample.busy)
        self._earlier.observe_demand(self._count, sample.features, demand)
        if sample.seconds is not None:
            self._earlier.observe_seconds(self._count, sample.features, sample.seconds)

    def expect(self, features: Mapping[str, float]) -> tuple[Demand | None, float | None]:
        """What a trial needs and how many seconds it takes, as far as earlier runs tell and this one does not yet."""
        if self._measured >= ENOUGH:
            return None, None
        return self._earlier.demand(features), self._earlier.seconds(features)

    def learn(self, features: Mapping[str, float], demand: Demand, seconds: float | None) -> None:
        """Notes a trial of this session that is over.

        Args:
            features: What predictions go by.
            demand: As measured.
            seconds: From its start to its end, if it was not stopped before that.
        """
        self._measured += 1
        self._samples.append(_sample(features, demand, seconds))

    def save(self) -> None:
        """Adds this session's trials to the file; a run beside this one may have done so too, and a loss is no harm."""
        if self._path is None or not self._samples:
            return
        kept = [*_read(self._path), *self._samples][-KEPT:]
        rows = [[s.features, s.persistent, s.ephemeral, s.busy, s.seconds] for s in kept]
        written = self._path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(exist_ok=True)
            written.write_text(json.dumps({"version": VERSION, "trials": rows}), encoding="utf-8")
            written.replace(self._path)


def profile_path(storage: Path, trainable: Any, constants: Mapping[str, Any], hardware: str) -> Path:
    """Where the profile of a trainable is.

    Args:
        storage: The folder for runs.
        trainable: Its code, and that of what its own module defines and it uses, is a part of the name: changed code
            begins anew. What it gets from other modules, and its data, are not looked at.
        constants: Of the space; they may decide about memory just as well.
        hardware: What kind of device.
    """
    digest = hashlib.sha256(repr((VERSION, hardware, *_identity(trainable))).encode())
    digest.update(repr([(name, _plain(value)) for name, value in sorted(constants.items())]).encode())
    inner = _unwrapped(trainable)
    name = getattr(inner, "__name__", type(inner).__name__).strip("<>")
    return storage / ".profiles" / f"{name}-{digest.hexdigest()[:16]}.json"


def _sample(features: Mapping[str, float], demand: Demand, seconds: float | None) -> _Sample:
    return _Sample(dict(features), demand.persistent, demand.ephemeral, demand.busy, seconds)


def _read(path: Path | None) -> list[_Sample]:
    """What the file says; nothing if there is none, or it is not one of ours."""
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path else {}
        if content.get("version") != VERSION:
            return []
        return [
            _Sample({str(key): float(value) for key, value in features.items()}, int(p), int(e), busy, seconds)
            for features, p, e, busy, seconds in content["trials"]
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []


# ---- what a trainable is


def _bound(trainable: Any) -> Iterator[object]:
    """What a trainable was given beforehand."""
    while isinstance(trainable, functools.partial):
        yield _plain(trainable.args)
        yield sorted((name, repr(_plain(value))) for name, value in trainable.keywords.items())
        trainable = trainable.func


def _unwrapped(trainable: Any) -> Any:
    while isinstance(trainable, functools.partial):
        trainable = trainable.func
    if isinstance(trainable, types.MethodType):
        trainable = trainable.__func__
    if isinstance(trainable, types.FunctionType):
        return inspect.unwrap(trainable, stop=lambda inner: not isinstance(inner, types.FunctionType))
    return trainable if isinstance(trainable, type) else type(trainable)


def _identity(trainable: Any) -> Iterator[object]:
    """All that tells a trainable from others, from one process to the next."""
    yield from _bound(trainable)
    todo, seen = [_unwrapped(trainable)], set[int]()
    module = todo[0].__module__
    while todo:
        one = todo.pop(0)
        if id(one) in seen or getattr(one, "__module__", None) != module:
            continue
        seen.add(id(one))
        yield one.__qualname__
        for function in _functions(one):
            yield from _code(function.__code__)
            yield _plain(function.__defaults__)
            yield sorted((name, repr(_plain(value))) for name, value in (function.__kwdefaults__ or {}).items())
            names = [*function.__code__.co_names, *_inner_names(function.__code__)]
            used = [function.__globals__.get(name) for name in names]
            todo += [other for other in used if isinstance(other, (type, types.FunctionType))]


def _functions(one: type | types.FunctionType) -> Iterator[types.FunctionType]:
    if isinstance(one, types.FunctionType):
        yield one
    else:
        for value in vars(one).values():
            function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            if isinstance(function, types.FunctionType):
                yield function


def _code(code: types.CodeType) -> Iterator[object]:
    yield code.co_code
    yield code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant)
        else:
            yield _plain(constant)


def _inner_names(code: types.CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from constant.co_names
            yield from _inner_names(constant)


def _plain(value: Any) -> object:
    """A value as the same text in every process."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(repr(_plain(item)) for item in value)
    return type(value).__qualname__
