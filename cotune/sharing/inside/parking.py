"""Parking: keeps a paused trial's state in host memory instead of on its GPU."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any


class Parking:
    """Moves the storage of a trial's parameters and of its optimizers' state to the host and back.

    Tensors keep their identity, and views stay views: only the storage beneath is emptied and filled again. Its address
    changes, so CUDA graphs that the trial has captured become invalid.

    Args:
        device: Type of the devices whose tensors are moved: `cuda`.
    """

    def __init__(self, device: str = "cuda") -> None:
        self._device = device
        # By id, since one that is a dataclass has no hash; with the ids of the parameters that its first step has
        # trained. Others may belong to an object of `cotune.shared`, which lane-mates use during the pause.
        self._optimizers: dict[int, tuple[weakref.ref[Any], set[int]]] = {}
        self._parked: list[tuple[Any, Any]] = []

    def saw(self, optimizer: Any) -> None:
        """Notes an optimizer of the trial, after a step."""
        known, number = self._optimizers, id(optimizer)
        if number not in known:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            trained = {id(parameter) for parameter in parameters if parameter.grad is not None}
            known[number] = weakref.ref(optimizer, lambda _: known.pop(number, None)), trained

    @property
    def movable(self) -> int:
        """Bytes that `park()` would move."""
        return sum(storage.nbytes() for storage in self._storages())

    def park(self) -> int:
        """Moves the state to the host; returns the bytes moved.

        With little host memory left it moves a part, or nothing.
        """
        storages = self._storages()
        if not storages:
            return 0
        import torch

        if self._device == "cuda":
            # The trial's own streams may still use the storage that is about to be freed.
            torch.cuda.synchronize()
        for storage in storages:
            on_device = _bytes_of(storage)
            try:
                # By its name: a trial may have made its GPU the default device.
                host = torch.empty(storage.nbytes(), dtype=torch.uint8, device="cpu", pin_memory=self._device == "cuda")
            except RuntimeError:
                break
            host.copy_(on_device)
            del on_device
            self._parked.append((storage, host))
            storage.resize_(0)
        if self._device == "cuda":
            torch.cuda.empty_cache()
        return sum(host.numel() for _, host in self._parked)

    def fetch(self) -> None:
        """Moves everything back."""
        for storage, host in self._parked:
            storage.resize_(host.numel())
            _bytes_of(storage).copy_(host)
        self._parked.clear()

    def _storages(self) -> list[Any]:
        found = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in self._tensors()}
        found.pop(0, None)
        # torch cannot free memory that another library owns.
        return [storage for storage in found.values() if storage.resizable()]

    def _tensors(self) -> Iterator[Any]:
        for reference, trained in list(self._optimizers.values()):
            if (optimizer := reference()) is None:
                continue
            import torch

            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    tensors = list(optimizer.state.get(parameter, {}).values())
                    if parameter.grad is not None or id(parameter) in trained:
                        tensors += parameter, parameter.grad
                    for tensor in tensors:
                        # Tensors of other classes may have no storage of their own.
                        is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
                        if is_plain and tensor.device.type == self._device:
                            yield tensor


def _bytes_of(storage: Any) -> Any:
    """All of a storage as a tensor of bytes."""
    import torch

    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
