"""Results as they travel: bytes with their digest, from a worker with a name."""

import hashlib
import pickle
from dataclasses import dataclass
from typing import Any


class CorruptedError(ValueError):
    """A result whose bytes are not those that its worker sent."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """What a worker found for a share; `digest` is sha256 of `payload`."""

    worker: str
    digest: str
    payload: bytes

    @classmethod
    def of(cls, worker: str, found: Any) -> "Sealed":
        payload = pickle.dumps(found, protocol=5)
        return cls(worker, hashlib.sha256(payload).hexdigest(), payload)

    def opened(self) -> Any:
        """What was found. Raises `CorruptedError` before anything is made of wrong bytes."""
        if hashlib.sha256(self.payload).hexdigest() != self.digest:
            raise CorruptedError("its result is not what it sent: the digest is another")
        return pickle.loads(self.payload)
